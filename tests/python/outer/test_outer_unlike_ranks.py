# SPDX-License-Identifier: Apache-2.0
"""Ranks that are not in the same round: after other numbers of steps, or with states of other steps."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn

import octavo

pytestmark = pytest.mark.timeout(120)

PLANS = ["int4+ef", "bf16", "dense"]


def steady_outer(plan: str, **options) -> tuple[nn.Module, octavo.Outer]:
    model = nn.Linear(16, 16, bias=False)
    nn.init.zeros_(model.weight)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    whole = dict(every=4, lr=1.0, momentum=0.0, timeout_s=20) | options
    return model, octavo.Outer(model, inner, plan, **whole)


def make_steps(model: nn.Module, outer: octavo.Outer, number: int) -> None:
    """Each step adds 1 to all weights."""
    for _ in range(number):
        model.weight.grad = torch.full_like(model.weight, -1.0)
        outer.step()


def synchronize_once_more(rank: int, plan: str) -> str:
    """Rank 1 calls synchronize() where rank 0 makes a round."""
    model, outer = steady_outer(plan)
    with pytest.raises(RuntimeError) as caught:
        make_steps(model, outer, 2)
        if rank == 1:
            outer.synchronize()
        make_steps(model, outer, 2)
    return str(caught.value)


@pytest.mark.parametrize("plan", PLANS)
def test_a_round_and_a_synchronization_are_not_averaged(two_ranks, plan):
    said = two_ranks.run(synchronize_once_more, plan)
    by_round, by_call = "in round 1 of fragment 0, after step 4", "in round 1 of fragment 0, of synchronize()"
    assert f"rank 0 is {by_round}, and rank 1 is {by_call}" in said[0]
    assert f"rank 1 is {by_call}, and rank 0 is {by_round}" in said[1]
    assert all("Ranks must be in the same round" in one for one in said)


def go_on_from_other_steps(rank: int, plan: str) -> str:
    """Rank 0 has the state of step 8, rank 1 that of step 4, as after a crash between two saves."""
    model, outer = steady_outer(plan)
    make_steps(model, outer, 4)
    saved = copy.deepcopy(outer.state_dict())
    make_steps(model, outer, 4)
    if rank == 0:
        saved = outer.state_dict()
    model, outer = steady_outer(plan)
    outer.load_state_dict(saved)
    with pytest.raises(RuntimeError) as caught:
        make_steps(model, outer, 4)
    return str(caught.value)


@pytest.mark.parametrize("plan", PLANS)
def test_states_of_other_steps_are_told_in_the_next_round(two_ranks, plan):
    said = two_ranks.run(go_on_from_other_steps, plan)
    assert all("in round 3 of fragment 0, after step 12" in one and "in round 2" in one for one in said)


def end_with_other_steps(rank: int, plan: str, delay: int, steps: list[int]) -> tuple[float, float]:
    model, outer = steady_outer(plan, delay=delay)
    make_steps(model, outer, steps[rank])
    outer.synchronize()
    return float(model.weight.mean()), float(model.weight.std())


@pytest.mark.parametrize(
    "plan,delay,steps,end",
    [
        ("int4+ef", 0, [4, 7], 5.5),
        ("dense", 0, [7, 4], 5.5),
        ("dense", 0, [5, 7], 6.0),
        ("dense", 0, [4, 4], 4.0),
        ("dense", 2, [4, 5], 2.5),  # what was sent after step 2 has arrived in step 4, and ranks went on from there
        ("int4+ef", 2, [3, 5], 2.5),  # on rank 0 it arrives in synchronize()
    ],
)
def test_ranks_may_end_with_other_numbers_of_steps(two_ranks, plan, delay, steps, end):
    """Also where the last step of one of them has ended a round."""
    ends = two_ranks.run(end_with_other_steps, plan, delay, steps)
    assert ends == [(pytest.approx(end), pytest.approx(0, abs=1e-3))] * 2
    assert ends[0] == ends[1]


def end_with_a_spread_momentum(rank: int, steps: list[list[int]], delay: int) -> list[list[float]]:
    """Makes some steps, other numbers on each rank, and synchronizes; then the same with the next numbers."""
    model, outer = steady_outer("dense", momentum=0.5, spread=True, delay=delay)
    ends = []
    for of_ranks in steps:
        make_steps(model, outer, of_ranks[rank])
        outer.synchronize()
        ends.append(model.weight.flatten()[:3].tolist())
    return ends


@pytest.mark.parametrize("steps,delay", [([[8, 11]], 0), ([[9, 11]], 0), ([[1, 3], [3, 1], [4, 4]], 0), ([[8, 9]], 1)])
def test_ranks_that_have_drifted_by_other_parts_of_a_momentum_have_one_anchor(two_ranks, steps, delay):
    ours, theirs = two_ranks.run(end_with_a_spread_momentum, steps, delay)
    assert ours == theirs
    assert ours[0][0] > 1


def go_on_after_other_steps(rank: int, path: str, order: list[int] | None) -> list[float]:
    """Rank 1 has made a step more when both synchronize. Rank 0 makes it then, so that both are in the same step, and
    only rank 0 has moved since the anchor."""
    model, outer = steady_outer("dense")
    make_steps(model, outer, 1 + rank)
    outer.synchronize()
    make_steps(model, outer, 1 - rank)
    if order is not None:
        torch.save((outer.state_dict(), model.state_dict()), f"{path}/{rank}")
        dist.barrier()
        saved = [torch.load(f"{path}/{number}", weights_only=False) for number in range(2)]
        model, outer = steady_outer("dense")
        model.load_state_dict(saved[rank][1])
        outer.load_state_dict([saved[number][0] for number in order])
    outer.synchronize()
    make_steps(model, outer, 4)
    return model.weight.flatten()[:3].tolist()


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_a_list_of_states_has_each_ranks_own_position(two_ranks, tmp_path, order):
    assert two_ranks.run(go_on_after_other_steps, str(tmp_path), order) == two_ranks.run(
        go_on_after_other_steps, str(tmp_path), None
    )
