# SPDX-License-Identifier: Apache-2.0
"""What compressed DDP refuses: arguments and plans that make no sense, and ranks that differ or are late."""

import pytest
import torch
import torch.distributed as dist
from ddp_runs import OddShapes, make, step_once
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import octavo


def refuse_arguments(rank: int) -> None:
    with pytest.raises(TypeError, match="DistributedDataParallel"):
        octavo.compress(nn.Linear(2, 2), "sign+ef")
    model, handle, _ = make("sign+ef")
    with pytest.raises(ValueError, match="set_plan"):
        octavo.compress(model, "int4")
    with pytest.raises(ValueError, match="sign"):
        handle.set_plan("nonsense")
    with pytest.raises(TypeError, match="expected an octavo"):
        handle.set_plan(4)
    with pytest.raises(TypeError, match=r"expected exempt as patterns of parameters' names or as a function .*, got 3"):
        octavo.compress(DistributedDataParallel(OddShapes()), "sign+ef", exempt=["norm*", 3])
    with pytest.raises(ValueError, match=r"the exempt pattern 'norn\*' matches none of"):
        octavo.compress(DistributedDataParallel(OddShapes()), "sign+ef", exempt=["norn*"])
    elsewhere = DistributedDataParallel(OddShapes())
    elsewhere.module.late = nn.Parameter(torch.empty(3, device="meta"))
    with pytest.raises(NotImplementedError, match="expected a tensor on cpu, cuda, xpu or sycl, got one on meta"):
        octavo.compress(elsewhere, "int4")
    late = OddShapes()
    delayed = dict(
        delay_all_reduce_named_params=[("wide.weight", late.wide.weight)], param_to_hook_all_reduce=late.norm.weight
    )
    with pytest.raises(ValueError, match=r"\[ddp\.compress\] this model delays gradients"):
        octavo.compress(DistributedDataParallel(late, **delayed), "int4")


def test_arguments_that_make_no_sense_are_refused(two_ranks):
    two_ranks.run(refuse_arguments)


def choose_a_plan_with_a_momentum(rank: int) -> tuple[str, str]:
    model = DistributedDataParallel(OddShapes())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    handle = octavo.compress(model, "int4+ef", optimizer=optimizer)
    with pytest.raises(ValueError, match="build it with momentum=0") as refused:
        handle.set_plan("dgc:0.01")
    optimizer.param_groups[0]["momentum"] = 0.0
    handle.set_plan("dgc:0.01")
    return str(refused.value), str(handle.plan)


def test_a_later_plan_with_a_momentum_is_refused_beside_that_of_the_optimizer(two_ranks):
    for said, plan in two_ranks.run(choose_a_plan_with_a_momentum):
        assert said.startswith("[handle.set_plan] the plan topk:0.01+dgc keeps the momentum")
        assert plan == "topk:0.01+dgc"


def set_plan_without_kernels(rank: int) -> None:
    from octavo import _C

    model, handle, optimizer = make("dense")
    require, _C.require_kernels = _C.require_kernels, lambda _: (_ for _ in ()).throw(NotImplementedError("no kernels"))
    try:
        with pytest.raises(NotImplementedError, match="no kernels"):
            handle.set_plan("int4+ef")
    finally:
        _C.require_kernels = require
    step_once(model, optimizer, rank, 0)
    assert str(handle.plan) == "dense"


def test_a_plan_without_kernels_is_refused_before_the_next_backward_pass(two_ranks):
    two_ranks.run(set_plan_without_kernels)


def hook_without_compressor(rank: int) -> str:
    model = DistributedDataParallel(nn.Linear(4, 4))
    try:
        octavo._C.register_ddp_hook(model.reducer, None, list(model.parameters()))
    except ValueError as error:
        return str(error)
    return ""


def test_a_hook_without_a_compressor_is_refused(two_ranks):
    for said in two_ranks.run(hook_without_compressor):
        assert said.startswith("[comm.register_ddp_hook] expected a compressor")


def unlike_embedding(rank: int) -> str:
    """Rank 0 has sparse gradients and rank 1 dense ones, and a message longer than the one that rank 0 expects."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Embedding(2000, 80, sparse=rank == 0))
    octavo.compress(model, "int4+ef", timeout_s=10)
    with pytest.raises(RuntimeError) as raised:
        model(torch.tensor([rank, 5])).sum().backward()
    return str(raised.value)


def test_sparse_gradients_against_dense_ones_are_an_error_on_both_ranks(two_ranks):
    for rank, said in enumerate(two_ranks.run(unlike_embedding)):
        assert f"rank {rank} was sent a bucket of another step, plan or model by rank {1 - rank}" in said


def a_rank_that_is_late(rank: int) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(80, 80))
    octavo.compress(model, "int4+ef", timeout_s=1)
    if rank == 0:
        with pytest.raises(TimeoutError, match=r"\[comm.wire\] rank 0: a peer did not answer within 1000 ms"):
            model(torch.ones(1, 80)).sum().backward()
    dist.barrier()


def test_a_deadline_of_a_backward_pass_is_a_timeout_error(two_ranks):
    two_ranks.run(a_rank_that_is_late)


def disagree(rank: int) -> None:
    for plan, exempt, what in [
        ("int4" if rank else "sign", None, "plan"),
        ("sign", ["norm*", "wide*"][rank], "exempt"),
    ]:
        with pytest.raises(ValueError, match=f"all ranks must have the same {what}.*; rank 1 differs from rank 0"):
            octavo.compress(DistributedDataParallel(OddShapes()), plan, exempt=exempt)


def test_ranks_that_disagree_are_told_so(two_ranks):
    two_ranks.run(disagree)


def set_plans_that_differ(rank: int, plans: tuple[str, str]) -> str:
    model, handle, optimizer = make("dense")
    handle.set_plan(plans[rank])
    try:
        step_once(model, optimizer, rank, 0)
    except RuntimeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("plans", [("int4+ef", "int8+ef"), ("sign", "int8:8"), ("powersgd:1", "int8")])
def test_plans_that_differ_are_told_whatever_their_sizes(two_ranks, plans):
    for said in two_ranks.run(set_plans_that_differ, plans):
        assert "another step, plan or model" in said
