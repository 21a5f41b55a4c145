# SPDX-License-Identifier: Apache-2.0
"""Feedback that is kept in 8 bits, error feedback (ef:8bit) and moving averages of errors (loco). It is compared with a
float reference, over other numbers of ranks, and its cost and its savings are measured."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from feedback_rules import COUNT, averaged, make_weight, normal_gradient, owned_ranges, sent_by
from test_feedback import distance_after, sum_of_results
from test_feedback_worlds import state_after
from torch import Tensor

import octavo
from octavo import _C


def unpacked(payload: Tensor, counts: list[int]) -> Tensor:
    """Returns the values of what is kept in 8 bits, one range's payload after another."""
    parts = []
    for count in counts:
        parts.append(torch.empty(count))
        size = octavo.Plan("int8").payload_bytes(count)
        _C.decode(octavo.Plan("int8"), payload[:size].clone(), parts[-1])
        payload = payload[size:]
    assert payload.numel() == 0
    return torch.cat([torch.empty(0), *parts])


@dataclass
class Owed:
    """What one rank owes, as floats of the whole tensor: of its contributions, and of the sums that it owns."""

    by_sender: Tensor
    by_owner: Tensor

    @staticmethod
    def of(state: dict, rank: int, world: int) -> Owed:
        ranges = owned_ranges(world)
        own = ranges[rank]
        sent = unpacked(
            state["packed_owed/weight"], [one.stop - one.start for owner, one in enumerate(ranges) if owner != rank]
        )
        owed = Owed(torch.zeros(COUNT), torch.zeros(COUNT))
        owed.by_sender[: own.start], owed.by_sender[own.stop :] = sent[: own.start], sent[own.start :]
        owed.by_owner[own] = unpacked(state["packed_owed_to_all/weight"], [own.stop - own.start])
        if "packed_owed_to_own/weight" in state:
            owed.by_sender[own] = unpacked(state["packed_owed_to_own/weight"], [own.stop - own.start])
        return owed


def steps_of(rank: int, world: int, plan: str, steps: int) -> list[tuple[Tensor, Owed]]:
    ddp, handle = make_weight(plan)
    return [
        (averaged(ddp, normal_gradient(rank, step, world)), Owed.of(handle.state_dict(), rank, world))
        for step in range(steps)
    ]


def require_packed(kept: Tensor, exact: Tensor) -> None:
    """Checks that kept values are unbiased and within one 8-bit code of their block."""
    code = float(exact.abs().max()) / 127
    assert float((kept - exact).abs().max()) <= code * 1.001
    assert abs(float((kept - exact).mean())) < 0.1 * code


@dataclass
class Rule:
    feedback: str
    share: float = 1  # the share of what is owed that a step adds
    decay: float = 1  # the factor of what senders owe
    period: int = 1024  # the number of steps after which nothing is owed
    over_hits: bool = False


RULES = [Rule("loco:0.75:3", share=0.25, period=3), Rule("ef:8bit"), Rule("ef:0.9:8bit", decay=0.9)]


def require_reference(by_rank: list[list[tuple[Tensor, Owed]]], codec: str, rule: Rule) -> None:
    """Compares each step with the reference, which begins with what was kept of the step before."""
    world = len(by_rank)
    before = [Owed(torch.zeros(COUNT), torch.zeros(COUNT)) for _ in range(world)]
    for step in range(len(by_rank[0])):
        gradients = [normal_gradient(rank, step, world) for rank in range(world)]
        if (step + 1) % rule.period == 0:
            before = [Owed(torch.zeros(COUNT), torch.zeros(COUNT)) for _ in range(world)]
        kept = [by_rank[rank][step][1] for rank in range(world)]
        for owner, own in enumerate(owned_ranges(world)):
            total = torch.zeros(own.stop - own.start)
            hits = torch.zeros(own.stop - own.start)
            for rank in range(world):
                if rank == owner and not rule.over_hits:
                    continue
                value, owed = gradients[rank][own], rule.decay * before[rank].by_sender[own]
                sent = sent_by(codec, value + rule.share * owed)
                total += sent
                hits += sent != 0
                require_packed(kept[rank].by_sender[own], value + owed - sent)
            if rule.over_hits:
                value = total * (1 / hits.clamp(min=1))
            else:
                value = (gradients[owner][own] + total) * torch.tensor(1 / world, dtype=torch.float32)
            owed = before[owner].by_owner[own]
            sent = sent_by(codec, value + rule.share * owed)
            require_packed(kept[owner].by_owner[own], value + owed - sent)
            for rank in range(world):
                assert torch.equal(by_rank[rank][step][0][own], sent), (step, owner, rank)
        before = kept


@pytest.mark.parametrize(
    ("world", "codec", "rule"),
    [
        *((2, codec, rule) for codec in ("int4", "sign", "topk:0.05") for rule in RULES),
        (3, "topk:0.05", RULES[2]),
        (4, "int4", RULES[0]),
    ],
    ids=lambda value: value.feedback if isinstance(value, Rule) else None,
)
def test_it_is_its_float_reference(ranks_of, world, codec, rule):
    require_reference(ranks_of(world).run(steps_of, world, f"{codec}+{rule.feedback}", 5), codec, rule)


@pytest.mark.parametrize("world", [2, 3])
def test_over_hits_it_is_its_float_reference(ranks_of, world):
    rule = Rule("ef:0.9:8bit", decay=0.9, over_hits=True)
    require_reference(ranks_of(world).run(steps_of, world, "topk:0.05+ef:0.9:8bit+hits", 5), "topk:0.05", rule)


# ---- other numbers of ranks


def owed_to_the_average(states: list[dict]) -> Tensor:
    """Returns what the senders owe, divided by their number, plus what the owners owe."""
    all_ranks = [Owed.of(state, rank, len(states)) for rank, state in enumerate(states)]
    return sum(one.by_sender / len(states) + one.by_owner for one in all_ranks)


@pytest.mark.parametrize("feedback", ["loco", "ef:8bit"])
def test_what_is_owed_survives_two_three_and_two_ranks(two_ranks, three_ranks, feedback):
    plan = f"topk:0.03+{feedback}"
    first = two_ranks.run(state_after, 2, plan, None, 4)
    three = three_ranks.run(state_after, 3, plan, first, 0)
    again = two_ranks.run(state_after, 2, plan, three, 0)
    owed = owed_to_the_average(first)
    for states in (three, again):
        torch.testing.assert_close(owed_to_the_average(states), owed, rtol=0, atol=2 * float(owed.abs().max()) / 127)
    three_ranks.run(state_after, 3, plan, first, 2)  # the run goes on from there


def test_what_owners_owe_survives_one_rank(two_ranks, one_rank):
    """Senders owe nothing on one rank, because nobody sends."""
    first = two_ranks.run(state_after, 2, "int4+ef:8bit", None, 4)
    (alone,) = one_rank.run(state_after, 1, "int4+ef:8bit", first, 2)
    again = two_ranks.run(state_after, 2, "int4+ef:8bit", [alone], 0)
    owed = sum(Owed.of(state, rank, 2).by_owner for rank, state in enumerate(first))
    code = float(owed.abs().max()) / 127
    for states in ([alone], again):
        all_ranks = [Owed.of(state, rank, len(states)) for rank, state in enumerate(states)]
        torch.testing.assert_close(sum(one.by_owner for one in all_ranks), owed, rtol=0, atol=code)
        assert not any(one.by_sender.any() for one in all_ranks)
    two_ranks.run(state_after, 2, "int4+ef:8bit", again, 2)  # the run goes on from there


# ---- what it costs and saves


def bytes_kept(rank: int, plan: str) -> int:
    ddp, handle = make_weight(plan)
    averaged(ddp, normal_gradient(rank, 0, 2))
    return sum(value.nbytes for value in handle.state_dict().values() if isinstance(value, Tensor))


def test_it_takes_half_the_bytes(two_ranks):
    for ours, theirs in zip(
        two_ranks.run(bytes_kept, "int4+ef:8bit"), two_ranks.run(bytes_kept, "int4+ef"), strict=True
    ):
        assert theirs == 2 * COUNT  # in bfloat16; half of them are the sender's and half the owner's
        assert ours == COUNT + COUNT // 256 * 4


@pytest.mark.parametrize("codec", ["sign", "int4", "topk:0.03"])
def test_what_8_bits_leave_out_is_little_of_what_is_owed(two_ranks, codec):
    """Over 60 steps, the sum of the averages is as near to the exact sum as with bfloat16."""
    in_8_bits = two_ranks.run(sum_of_results, f"{codec}+ef:8bit", 60)
    in_bfloat16 = two_ranks.run(sum_of_results, f"{codec}+ef", 60)
    without = two_ranks.run(sum_of_results, codec, 60)
    for ours, theirs, none in zip(in_8_bits, in_bfloat16, without, strict=True):
        assert ours < 1.05 * theirs
        assert ours < 0.6 * none


def test_it_descends_where_the_largest_values_alone_do_not(two_ranks):
    assert max(two_ranks.run(distance_after, "topk:0.03+ef:8bit", 0.02)) < 0.2
    assert max(two_ranks.run(distance_after, "topk:0.03+loco:0.5", 0.02)) < 0.2
