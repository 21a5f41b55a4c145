# SPDX-License-Identifier: Apache-2.0
"""Ranks that are not in the same round: after other numbers of steps, or with states of other steps."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import octavo

pytestmark = pytest.mark.timeout(120)

PLANS = ["int4+ef", "bf16", "dense"]


def steady_outer(plan: str, delay: int = 0) -> tuple[nn.Module, octavo.Outer]:
    model = nn.Linear(16, 16, bias=False)
    nn.init.zeros_(model.weight)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    return model, octavo.Outer(model, inner, plan, every=4, lr=1.0, momentum=0.0, delay=delay, timeout_s=20)


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
    assert (
        "rank 0 is in round 1 of fragment 0, after step 4, and rank 1 is in round 1 of fragment 0, of sync" in said[0]
    )
    assert all("Ranks must make the same number of steps" in one for one in said)


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
    model, outer = steady_outer(plan, delay)
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
