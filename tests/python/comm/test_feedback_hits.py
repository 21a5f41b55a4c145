# SPDX-License-Identifier: Apache-2.0
"""Averages over the ranks that sent a value (`+hits`) in the place of averages over all ranks."""

import pytest
import torch
from feedback_rules import COUNT, OverHits, averaged, make_weight, normal_gradient, require_same, small_numbers
from torch import Tensor

import octavo

HITS = [("topk:0.03", "topk:0.03", 1), ("topk:64/1024", "topk:0.1", 0.5), ("threshold:2.5", "dense", 1)]


def results_and_state(rank: int, world: int, plan: str, gradient_of, steps: int) -> tuple[list[Tensor], dict]:
    ddp, handle = make_weight(plan)
    results = [averaged(ddp, gradient_of(rank, step, world)) for step in range(steps)]
    return results, handle.state_dict()


@pytest.mark.parametrize("ways", HITS, ids=str)
@pytest.mark.parametrize("world", [2, 3])
def test_an_average_over_hits_is_its_float_reference(ranks_of, world, ways):
    """In addition, what was not sent is owed for every value that a rank has, including those of its own range."""
    up, down, decay = ways
    plan = f"{up}+down:{down}+ef:{decay}+hits"
    results = ranks_of(world).run(results_and_state, world, plan, small_numbers, 4)
    reference = OverHits(world, up, down, decay)
    require_same([result for result, _ in results], small_numbers, reference)
    for rank, (_, state) in enumerate(results):
        for role in ("worker", "own") + (("owner",) if down != "dense" else ()):
            assert torch.equal(state[f"{role}/weight"].float(), reference.owed_by(rank, role)), (rank, role)


@pytest.mark.parametrize("world", [2, 3])
def test_bits_of_values_are_sent_over_hits_too(ranks_of, world):
    codec = "topk:64/1024:sign"
    results = ranks_of(world).run(results_and_state, world, f"{codec}+ef:0.95+hits", normal_gradient, 1)
    reference = OverHits(world, codec, codec)
    require_same([result for result, _ in results], normal_gradient, reference)
    for rank, (_, state) in enumerate(results):
        for role in ("worker", "own", "owner"):
            kept, exact = state[f"{role}/weight"].float(), reference.owed_by(rank, role)
            place = f"{role} of rank {rank}: "
            torch.testing.assert_close(kept, exact, rtol=2**-7, atol=0, msg=lambda said, place=place: place + said)


def averages_of_disjoint(rank: int, world: int) -> None:
    """Each value is on one rank only: divided by the number of ranks that sent it, it arrives whole."""
    whole = (torch.arange(COUNT) % 100 + 1.0) * 3
    own = torch.where(torch.arange(COUNT) % world == rank, whole, 0.0)
    over_hits, over_ranks = own.clone(), own.clone()
    octavo.all_reduce(over_hits, "topk:0.5+down:dense+hits", op=torch.distributed.ReduceOp.AVG)
    octavo.all_reduce(over_ranks, "topk:0.5+down:dense", op=torch.distributed.ReduceOp.AVG)
    assert torch.equal(over_hits, whole)
    torch.testing.assert_close(over_ranks * world, whole)


@pytest.mark.parametrize("world", [2, 3])
def test_of_disjoint_values_the_two_averages_differ_by_the_number_of_ranks(ranks_of, world):
    ranks_of(world).run(averages_of_disjoint, world)


def same_places(rank: int) -> None:
    values = normal_gradient(rank, 0, 2)
    over_hits, over_ranks = values.clone(), values.clone()
    octavo.all_reduce(over_hits, "topk:1+hits", op=torch.distributed.ReduceOp.AVG)
    octavo.all_reduce(over_ranks, "topk:1", op=torch.distributed.ReduceOp.AVG)
    assert torch.equal(over_hits, over_ranks), "all ranks sent all values"
    with pytest.raises(ValueError, match="a sum is no average"):
        octavo.all_reduce(over_hits, "topk:0.5+hits")


def test_where_all_ranks_send_a_value_the_two_averages_are_one(two_ranks):
    two_ranks.run(same_places)


def leave_hits(rank: int) -> None:
    ddp, handle = make_weight("topk:0.1+ef+hits")
    averaged(ddp, normal_gradient(rank, 0, 2))
    assert {"worker/weight", "owner/weight", "own/weight"} <= set(handle.state_dict())
    handle.set_plan("topk:0.1+ef")
    assert "own/weight" not in handle.state_dict(), "own values are taken as they are now"
    averaged(ddp, normal_gradient(rank, 1, 2))
    handle.set_plan(octavo.Plan("topk:0.1+ef").averaged_over_hits().with_decay(0.5))
    assert str(handle.plan) == "topk:0.1+ef:0.5+hits"
    averaged(ddp, normal_gradient(rank, 2, 2))


def test_a_plan_over_ranks_drops_what_is_owed_to_the_own_range(two_ranks):
    two_ranks.run(leave_hits)
