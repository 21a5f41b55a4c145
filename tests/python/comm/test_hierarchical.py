# SPDX-License-Identifier: Apache-2.0
"""Hosts of several ranks in DDP: sums are exact inside a host and compressed between hosts."""

import re

import pytest
import torch
import torch.distributed as dist
from ddp_runs import OddShapes, batch_of, digest, step_once
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import octavo
from octavo.compression.ddp import _members_per_host

Run = tuple[DistributedDataParallel, octavo.Handle, torch.optim.Optimizer]


def make(plan: str, dtype: torch.dtype = torch.float32, ranks_per_host: int | str = 2, **options) -> Run:
    model = DistributedDataParallel(OddShapes().to(dtype), bucket_cap_mb=0.02)
    handle = octavo.compress(model, plan, ranks_per_host=ranks_per_host, **options)
    return model, handle, torch.optim.SGD(model.parameters(), lr=0.05)


def gradients_of(rank: int, plan: str | None) -> list[torch.Tensor]:
    model = make(plan)[0] if plan else DistributedDataParallel(OddShapes(), bucket_cap_mb=0.02)
    tokens = batch_of(rank, 0)
    nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    return [p.grad for p in model.parameters()]


@pytest.mark.parametrize(("plan", "tolerance"), [("dense", 1e-5), ("int8", 0.01), ("int4+down:int8", 0.12)])
def test_averages_are_close_to_ddps(four_ranks, plan, tolerance):
    ours, theirs = four_ranks.run(gradients_of, plan)[0], four_ranks.run(gradients_of, None)[0]
    for a, b in zip(ours, theirs, strict=True):
        if b.numel():
            assert (a - b).abs().max() <= tolerance * b.abs().max() + 1e-8


def train(rank: int, plan: str, dtype: torch.dtype) -> list[str]:
    model, handle, optimizer = make(plan, dtype)
    digests = []
    for step in range(4):  # DDP rebuilds its buckets after the first step
        step_once(model, optimizer, rank, step)
        digests.append(digest(model) + digest(model, grads=True))
    stats = handle.stats()
    assert stats["steps"] == 4 and stats["wire_bytes"] < stats["dense_bytes"] and stats["host_bytes"] > 0
    return digests


@pytest.mark.parametrize(("plan", "dtype"), [("sign+ef", torch.float32), ("int4+ef21", torch.bfloat16)], ids=str)
def test_replicas_are_bit_identical_on_all_hosts(four_ranks, plan, dtype):
    results = four_ranks.run(train, plan, dtype)
    assert all(result == results[0] for result in results)


def train_small_tensors(rank: int) -> str:
    """Of these tensors one rank of a host owns nothing, since they are not exempt."""
    model, _, optimizer = make("int8+ef21", exempt=[])
    for step in range(3):
        step_once(model, optimizer, rank, step)
    return digest(model)


def test_a_rank_that_owns_nothing_of_a_tensor_goes_on(four_ranks):
    assert len(set(four_ranks.run(train_small_tensors))) == 1


def test_a_group_of_a_part_of_each_hosts_processes():
    """LOCAL_WORLD_SIZE counts all processes of a host."""
    assert _members_per_host(8, [*range(16)]) == 8
    assert _members_per_host(8, [*range(0, 16, 2)]) == 4  # tensor-parallel pairs
    assert _members_per_host(8, [0, 8, 16]) == 1
    for uneven in ([0, 1, 4], [0, 1, 2, 4], [0, 4, 1, 5]):
        assert _members_per_host(4, uneven) == 0


def train_by_one_bit(rank: int) -> str:
    model = DistributedDataParallel(OddShapes())
    optimizer = octavo.optim.OneBitAdamW(model.parameters(), lr=1e-3, warmup_steps=2)
    octavo.compress(model, "sign+ef", optimizer=optimizer, ranks_per_host=2)
    for step in range(5):
        step_once(model, optimizer, rank, step)
    assert all(torch.isfinite(p).all() for p in model.parameters())
    return digest(model)


def test_an_optimizer_that_sends_its_momentum_trains(four_ranks):
    assert len(set(four_ranks.run(train_by_one_bit))) == 1


def refuse_the_plan_of_momenta(rank: int) -> str:
    model = DistributedDataParallel(OddShapes())
    optimizer = octavo.optim.OneBitAdamW(model.parameters(), lr=1e-3, warmup_steps=2)
    with pytest.raises(ValueError) as raised:
        octavo.compress(model, "powersgd:4+ef", optimizer=optimizer, ranks_per_host=2)
    return str(raised.value)


def test_a_plan_that_comes_after_a_warm_up_is_refused_before_it(four_ranks):
    for said in four_ranks.run(refuse_the_plan_of_momenta):
        assert "makes a linear map" in said and "ranks_per_host" in said


def save_and_resume(rank: int) -> None:
    model, handle, optimizer = make("sign+ef")
    for step in range(2):
        step_once(model, optimizer, rank, step)
    states: list[dict] = [{}] * 4
    dist.all_gather_object(states, handle.state_dict())
    resumed, resumed_handle, resumed_optimizer = make("sign+ef")
    resumed.module.load_state_dict(model.module.state_dict())
    with pytest.raises(ValueError, match=r"residuals of part \d of 2 of the model on each host, and this handle keeps"):
        resumed_handle.load_state_dict(states[rank ^ 1])
    resumed_handle.load_state_dict(states)
    for step in range(2, 4):
        step_once(model, optimizer, rank, step)
        step_once(resumed, resumed_optimizer, rank, step)
        assert digest(model) == digest(resumed)


def test_states_resume_with_the_same_bits(four_ranks):
    four_ranks.run(save_and_resume)


def one_host(rank: int) -> list[torch.Tensor]:
    model, handle, _ = make("sign+ef", ranks_per_host=4)
    tokens = batch_of(rank, 0)
    nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    assert handle.stats()["wire_bytes"] == 0
    return [p.grad for p in model.parameters()]


def test_where_all_ranks_share_a_host_nothing_is_lost(four_ranks):
    ours, theirs = four_ranks.run(one_host)[0], four_ranks.run(gradients_of, None)[0]
    assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-8) for a, b in zip(ours, theirs, strict=True))


def by_environment(rank: int) -> None:
    with pytest.MonkeyPatch.context() as environment:
        environment.delenv("LOCAL_WORLD_SIZE", raising=False)
        with pytest.raises(ValueError, match="reads LOCAL_WORLD_SIZE, which torchrun sets, and it is not set here"):
            make("int4+ef", ranks_per_host="auto")
        environment.setenv("LOCAL_WORLD_SIZE", "2")
        _, handle, _ = make("int4+ef", ranks_per_host="auto")
        assert handle.state_dict()["layout"] == f"part {rank % 2} of 2 of the model on each host"
        environment.setenv("LOCAL_WORLD_SIZE", "3")
        with pytest.raises(
            ValueError, match="ranks_per_host is 'auto': all hosts must have as many ranks of the group"
        ):
            make("int4+ef", ranks_per_host="auto")
        environment.setenv("LOCAL_WORLD_SIZE", "3" if rank < 3 else "1")
        with pytest.raises(ValueError, match="all ranks must have the same number of ranks on a host; rank 3 differs"):
            make("int4+ef", ranks_per_host="auto")


def test_torchrun_says_how_many_ranks_a_host_has(four_ranks):
    four_ranks.run(by_environment)


def refuse(rank: int) -> None:
    for size, words in [
        (3, "ranks_per_host is 3, and 4 ranks make no hosts of 3: all hosts must have as many ranks"),
        (0, "must be 'auto' or the number of ranks that each host has, got 0"),
        ("two", "must be 'auto' or the number of ranks that each host has, got 'two'"),
    ]:
        with pytest.raises(ValueError, match=words):
            make("int4+ef", ranks_per_host=size)
    for plan in ("powersgd:4+ef", "auto", "dgc:0.01+clip:1"):
        with pytest.raises(ValueError, match="ranks_per_host"):
            make(plan)
    model = DistributedDataParallel(OddShapes())
    signum = octavo.optim.Signum(model.parameters(), lr=1e-3)
    with pytest.raises(ValueError, match="Signum sends the update that each rank's own momentum makes"):
        octavo.compress(model, "sign-vote", optimizer=signum, ranks_per_host=2)
    octavo.compress(model, "sign-vote", optimizer=signum, ranks_per_host=1)  # the model is unchanged
    schedule = dict(var_freeze_step=2, local_step_scaler=2)
    model = DistributedDataParallel(OddShapes())
    zero_one = octavo.optim.ZeroOneAdam(model.parameters(), lr=1e-3, **schedule)
    with pytest.raises(ValueError, match="ZeroOneAdam sends the update that each rank's own momentum makes"):
        octavo.compress(model, "sign+ef", optimizer=zero_one, ranks_per_host=2)
    octavo.compress(model, "sign+ef", optimizer=zero_one)  # the model is unchanged
    sparse = DistributedDataParallel(nn.Sequential(nn.Embedding(30, 80, sparse=True), nn.Linear(80, 80)))
    octavo.compress(sparse, "sign+ef", ranks_per_host=2)
    with pytest.raises(RuntimeError, match="a sparse gradient is not cut into the ranges"):
        sparse(torch.tensor([rank, 5])).sum().backward()


def test_what_makes_no_sense_is_refused(four_ranks):
    four_ranks.run(refuse)


def lose_a_host(rank: int) -> None:
    model, _, optimizer = make("int4+ef", timeout_s=3.0)
    for step in range(2):  # DDP rebuilds its buckets
        step_once(model, optimizer, rank, step)
    if rank < 2:
        with pytest.raises(TimeoutError, match=r"\[comm.wire\] rank .*: a peer did not answer within"):
            step_once(model, optimizer, rank, 2)
    dist.barrier()


def test_a_host_that_does_not_answer_is_an_error_before_the_deadline(four_ranks):
    four_ranks.run(lose_a_host)


def differ_in_the_plan(rank: int) -> str:
    model, handle, optimizer = make("int4+ef", timeout_s=3.0)
    for step in range(2):  # DDP rebuilds its buckets
        step_once(model, optimizer, rank, step)
    if rank == 3:
        handle.set_plan("int8+ef")
    with pytest.raises((RuntimeError, TimeoutError)) as refused:
        step_once(model, optimizer, rank, 2)
    dist.barrier()
    return str(refused.value)


def test_errors_name_ranks_by_their_numbers_in_the_group(four_ranks):
    """Not by those in the connection of a host's two ranks, or of the two ranks that send to one another."""
    for rank, said in enumerate(four_ranks.run(differ_in_the_plan)):
        neighbour, counterpart = rank ^ 1, rank ^ 2
        assert f"] rank {rank}" in said, said
        assert {int(number) for number in re.findall(r"rank (\d)", said)} <= {rank, neighbour, counterpart}, said
