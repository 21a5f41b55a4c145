# SPDX-License-Identifier: Apache-2.0
"""What a step loses: the relative error and the cosine that parameter_stats reports for a measured step, compared with
figures worked out by hand and in torch."""

import math
from datetime import timedelta
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from feedback_rules import COUNT, SIDE, averaged, make_weight, normal_gradient
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import octavo
from octavo import _C


def fours_and_threes() -> Tensor:
    """Returns a tensor that in each rank's range is first 4, then 3: topk:0.5 leaves out the smaller half."""
    return torch.tensor([4.0, 3.0]).repeat_interleave(COUNT // 4).repeat(2)


def figures(handle: octavo.Handle, name: str = "weight") -> tuple[float | None, float | None]:
    (one,) = (one for one in handle.parameter_stats() if one["name"] == name)
    return one["relative_error"], one["cosine"]


def measure_by_hand(rank: int) -> None:
    ddp, handle = make_weight("topk:0.5")
    averaged(ddp, fours_and_threes())
    assert figures(handle) == (None, None), "nobody asked"
    handle.measure_next_step()
    assert figures(handle) == (None, None), "the step was not made"
    result = averaged(ddp, fours_and_threes())
    assert torch.equal(result, fours_and_threes() * (fours_and_threes() == 4))
    # of 4 and 3, only 4 arrives: sqrt(3*3 / (4*4 + 3*3)), 4*4 / (4 * 5)
    assert figures(handle) == pytest.approx((0.6, 0.8))
    averaged(ddp, normal_gradient(rank, 1, 2))
    assert figures(handle) == pytest.approx((0.6, 0.8)), "those of the step that was measured"
    handle.measure_next_step()
    averaged(ddp, torch.zeros(COUNT))
    assert figures(handle) == (None, None), "zeros have no direction"


def test_the_figures_are_those_worked_out_by_hand(two_ranks):
    two_ranks.run(measure_by_hand)


def compare_with_torch(rank: int, plan: str, scale: float) -> None:
    ddp, handle = make_weight(plan)
    handle._compressor.set_gradient_scale(scale)
    world = dist.get_world_size()
    for step in range(3):
        if step == 2:
            handle.measure_next_step()
        result = averaged(ddp, scale * normal_gradient(rank, step, world)) / scale
    mean = sum(normal_gradient(other, 2, world) for other in range(world)) / world
    error = float((result - mean).norm() / mean.norm())
    cosine = float(nn.functional.cosine_similarity(result, mean, dim=0))
    assert figures(handle) == pytest.approx((error, cosine), rel=1e-4)
    assert error > 0.01 and cosine < 0.9999


@pytest.mark.parametrize(
    "plan", ["int4", "sign+ef", "delta+topk:0.05", "powersgd:4+ef", "sketch:0.2:exact+ef", "int4+loco", "sign+econtrol"]
)
@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_the_figures_are_torchs(three_ranks, plan, scale):
    three_ranks.run(compare_with_torch, plan, scale)


def measured_once(rank: int, plan: str) -> tuple[float | None, float | None]:
    ddp, handle = make_weight(plan)
    handle.measure_next_step()
    averaged(ddp, normal_gradient(rank, 0, 2))
    return figures(handle)


def test_what_has_no_figures_says_so(two_ranks):
    for error, cosine in two_ranks.run(measured_once, "dense"):
        assert (error, cosine) == (0, 1)
    for error, cosine in two_ranks.run(measured_once, "sign-vote"):
        assert error is None and 0.4 < cosine < 0.9, "a vote has a direction and no size"
    for error, cosine in two_ranks.run(measured_once, "topk:0.1+hits"):
        assert error is None and 0.4 < cosine < 0.9, "an average over hits is none over ranks"
    for error, cosine in two_ranks.run(measured_once, "dgc:0.1"):
        assert error is None and cosine is None, "velocities are no gradients"


def measure_exempt(rank: int) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(64, 64))
    handle = octavo.compress(model, "sign")
    handle.measure_next_step()
    model(torch.randn(4, 64)).square().sum().backward()
    assert figures(handle, "bias")[0] < 1e-6 and figures(handle, "bias")[1] == pytest.approx(1)
    assert figures(handle)[0] > 0.1


def test_exempt_parameters_lose_nothing(two_ranks):
    two_ranks.run(measure_exempt)


def bytes_of_steps(rank: int) -> list[int]:
    ddp, handle = make_weight("int4+ef")
    sent = [0]
    for step in range(4):
        if step == 2:
            handle.measure_next_step()
        averaged(ddp, normal_gradient(rank, step, 2))
        sent.append(handle.stats()["wire_bytes"])
    return [after - before for before, after in pairwise(sent)]


def test_only_the_step_that_is_measured_costs_more(two_ranks):
    for first, second, measured, after in two_ranks.run(bytes_of_steps):
        assert first == second == after and measured == first + 4 * COUNT


def measure_alone(rank: int) -> None:
    ddp, handle = make_weight("int4+ef")
    if rank == 1:
        handle.measure_next_step()
    with pytest.raises(RuntimeError, match="another step, plan or model"):
        averaged(ddp, normal_gradient(rank, 0, 2))


def test_ranks_that_do_not_measure_together_are_told(two_ranks):
    two_ranks.run(measure_alone)


def measure_a_nan(rank: int) -> None:
    ddp, handle = make_weight("int4+ef")
    handle.measure_next_step()
    averaged(ddp, torch.full((COUNT,), math.nan) if rank else normal_gradient(rank, 0, 2))
    assert figures(handle) == (None, None)


def test_a_step_that_is_not_finite_has_no_figures(two_ranks):
    two_ranks.run(measure_a_nan)


def measure_shards(rank: int) -> None:
    model = nn.Linear(SIDE, SIDE, bias=False)
    fully_shard(model)
    handle = octavo.compress(model, "sign")
    handle.measure_next_step()
    gradients = [normal_gradient(other, 0, 2).view(SIDE, SIDE) for other in range(2)]
    (model(torch.eye(SIDE)) * gradients[rank].T).sum().backward()
    own = slice(rank * SIDE // 2, (rank + 1) * SIDE // 2)
    mean = ((gradients[0] + gradients[1]) / 2)[own].flatten()
    result = model.weight.grad.to_local().flatten()
    cosine = float(nn.functional.cosine_similarity(result, mean, dim=0))
    error = float((result - mean).norm() / mean.norm())
    assert figures(handle) == pytest.approx((error, cosine), rel=1e-4)


def test_ranks_of_fully_shard_measure_their_shards(two_ranks):
    two_ranks.run(measure_shards)


def test_a_divisor_counts_once_where_there_is_one_rank():
    """As FSDP2's, which averages over micro-batches too."""
    compressor = lone_compressor("int8")
    hook = _C.FsdpHook(compressor, [[(0, COUNT)]])
    gradients, averages = torch.randn(COUNT), torch.empty(COUNT)
    compressor.measure_next_step()
    hook.reduce_scatter(0, averages, gradients.clone(), dist.ReduceOp(dist.ReduceOp.AVG), 4)
    assert torch.equal(averages, gradients / 4)
    assert compressor.parameter_stats()[0]["relative_error"] == 0


def test_a_bucket_of_complex_numbers_has_half_as_many_places_as_real_numbers():
    _C.Compressor(lone_backend(), octavo.Plan("int8"), [("a", 8, False, 1), ("b", 8, False, 1)], 9.0).run_step(
        torch.ones(8, dtype=torch.complex64)
    )


def lone_backend() -> dist.ProcessGroupGloo:
    return dist.ProcessGroupGloo(dist.HashStore(), 0, 1, timeout=timedelta(seconds=9))


def lone_compressor(plan: str) -> _C.Compressor:
    return _C.shard_compressor(lone_backend(), octavo.Plan(plan), [("weight", COUNT, False, 1)], [COUNT], 9.0)
