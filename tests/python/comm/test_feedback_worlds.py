# SPDX-License-Identifier: Apache-2.0
"""What feedback remembers, over other numbers of ranks than those that saved it."""

import copy

import torch
from feedback_rules import COUNT, averaged, make_weight, owned_ranges, small_numbers
from torch import Tensor


def state_after(rank: int, world: int, plan: str, states: list[dict] | None, steps: int) -> dict:
    ddp, handle = make_weight(plan)
    if states is not None:
        handle.load_state_dict(states)
    for step in range(steps):
        averaged(ddp, small_numbers(rank, step, world))
    return copy.deepcopy(handle.state_dict())


def whole(states: list[dict], key: str) -> Tensor:
    """Returns for each rank what it sends of the tensor, with zeros in its own range."""
    all_ranks = torch.zeros(len(states), COUNT)
    for rank, own in enumerate(owned_ranges(len(states))):
        values = states[rank][key].float()
        all_ranks[rank, : own.start], all_ranks[rank, own.stop :] = values[: own.start], values[own.start :]
    return all_ranks


def owed_to_the_average(states: list[dict]) -> Tensor:
    """Returns what is owed of contributions, which include an owner's own, and of sums."""
    contributions = whole(states, "worker/weight").sum(0)
    if "own/weight" in states[0]:
        contributions += torch.cat([one["own/weight"] for one in states])
    return contributions / len(states) + torch.cat([one["owner/weight"] for one in states])


def test_what_dgc_owes_survives_two_three_and_two_ranks(two_ranks, three_ranks):
    first = two_ranks.run(state_after, 2, "dgc:0.03", None, 4)
    three = three_ranks.run(state_after, 3, "dgc:0.03", first, 0)
    again = two_ranks.run(state_after, 2, "dgc:0.03", three, 0)
    velocity = (first[0]["velocity/weight"] + first[1]["velocity/weight"]) / 2
    for states in (three, again):
        torch.testing.assert_close(owed_to_the_average(states), owed_to_the_average(first), rtol=0.02, atol=0.03)
        for one in states:
            torch.testing.assert_close(one["velocity/weight"], velocity)
    three_ranks.run(state_after, 3, "dgc:0.03", first, 2)  # the run goes on from there


def require_same_estimates(states: list[dict]) -> None:
    """Checks that an owner's estimate of a sender is, bit by bit, the estimate that the sender itself has."""
    sent = whole(states, "sent_estimate/weight")
    for owner, own in enumerate(owned_ranges(len(states))):
        assert torch.equal(states[owner]["shared_estimate/weight"], states[0]["shared_estimate/weight"])
        received = states[owner]["received_estimates/weight"].view(len(states) - 1, -1)
        senders = [rank for rank in range(len(states)) if rank != owner]
        for number, sender in enumerate(senders):
            assert torch.equal(received[number], sent[sender, own])


def test_estimates_agree_on_two_three_and_two_ranks(two_ranks, three_ranks):
    first = two_ranks.run(state_after, 2, "delta+int4", None, 4)
    three = three_ranks.run(state_after, 3, "delta+int4", first, 0)
    again = two_ranks.run(state_after, 2, "delta+int4", three, 0)
    for states in (first, three, again):
        require_same_estimates(states)
        assert torch.equal(states[0]["shared_estimate/weight"], first[0]["shared_estimate/weight"])
    estimate = whole(first, "sent_estimate/weight").sum(0)  # of two ranks, only one sends an element
    torch.testing.assert_close(whole(three, "sent_estimate/weight").sum(0), 2 * estimate)
    torch.testing.assert_close(whole(again, "sent_estimate/weight").sum(0), estimate)
    require_same_estimates(three_ranks.run(state_after, 3, "delta+int4", first, 2))


def test_what_econtrol_owes_survives_two_and_three_ranks(two_ranks, three_ranks):
    def owed(states):
        sent = whole(states, "owed/weight").sum(0) / len(states)
        return sent + torch.cat([one["owed_to_all/weight"] for one in states])

    first = two_ranks.run(state_after, 2, "int4+econtrol", None, 4)
    three = three_ranks.run(state_after, 3, "int4+econtrol", first, 0)
    torch.testing.assert_close(owed(three), owed(first))
    require_same_estimates(three)
    require_same_estimates(three_ranks.run(state_after, 3, "int4+econtrol", first, 2))


def test_what_ranks_owe_to_their_own_ranges_survives_two_three_and_two_ranks(two_ranks, three_ranks):
    plan = "topk:0.03+ef+hits"
    first = two_ranks.run(state_after, 2, plan, None, 4)
    three = three_ranks.run(state_after, 3, plan, first, 0)
    again = two_ranks.run(state_after, 2, plan, three, 0)
    own = torch.cat([one["own/weight"] for one in first])
    assert own.count_nonzero() > 0
    for states in (three, again):
        share = len(states) / len(first)  # contributions are divided by the number of ranks
        found = torch.cat([one["own/weight"] for one in states])
        torch.testing.assert_close(found, own * share, rtol=0.01, atol=0)
        torch.testing.assert_close(owed_to_the_average(states), owed_to_the_average(first), rtol=0.02, atol=0.03)
    three_ranks.run(state_after, 3, plan, first, 2)  # the run goes on from there
