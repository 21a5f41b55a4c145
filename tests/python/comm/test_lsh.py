# SPDX-License-Identifier: Apache-2.0
"""Values that have hardly changed are not sent (lsh): what the ranks use in their place, and what is owed."""

import feedback_rules
import pytest
import torch
from feedback_rules import EControl, Ef21, averaged, make_weight, normal_gradient, require_same, results_of
from torch import Tensor

import octavo


def in_pairs(rank: int, step: int, world: int) -> Tensor:
    """Returns a gradient that in every second step is nearly that of the step before, whatever the hash is."""
    return normal_gradient(rank, step // 2, world) * (1 + 0.01 * (step % 2))


class ReusedEf21(Ef21):
    """EF21 where no rank sends the second of two similar steps."""

    steps = 0

    def step(self, gradients: list[Tensor]) -> Tensor:
        self.steps += 1
        return self.average.clone() if self.steps % 2 == 0 else super().step(gradients)


class ReusedEControl(EControl):
    """EControl where no rank sends the second of two similar steps; what was not sent is owed."""

    steps = 0

    def step(self, gradients: list[Tensor]) -> Tensor:
        self.steps += 1
        self.plan = ["nothing", "int4"][self.steps % 2]
        return super().step(gradients)


@pytest.fixture
def can_send_nothing(monkeypatch):
    sent_by = feedback_rules.sent_by
    monkeypatch.setattr(
        feedback_rules, "sent_by", lambda plan, values: values * 0 if plan == "nothing" else sent_by(plan, values)
    )


@pytest.mark.parametrize("codec", ["int4", "topk:0.5"])
@pytest.mark.parametrize("world", [2, 3, 4])
def test_what_is_reused_is_the_estimate_of_ef21(ranks_of, world, codec):
    results = ranks_of(world).run(results_of, world, f"lsh:0.25:{codec}", in_pairs, 6)
    require_same(results, in_pairs, ReusedEf21(world, codec))


@pytest.mark.parametrize("world", [2, 3, 4])
def test_what_is_reused_is_owed_under_econtrol(ranks_of, can_send_nothing, world):
    results = ranks_of(world).run(results_of, world, "lsh:0.25:int4+econtrol:0.05", in_pairs, 6)
    require_same(results, in_pairs, ReusedEControl(world, "int4", 0.05))


def sent_in_pairs(rank: int, plan: str, steps: int) -> tuple[list[int], list[float | None], dict]:
    ddp, handle = make_weight(plan)
    sent, reused = [], []
    for step in range(steps):
        averaged(ddp, in_pairs(rank, step, 2))
        (weight,) = handle.parameter_stats()
        sent.append(handle.stats()["wire_bytes"] - sum(sent))
        reused.append(weight["reused_share"])
    return sent, reused, handle.stats()


def test_statistics_tell_how_much_was_reused(two_ranks):
    for sent, reused, stats in two_ranks.run(sent_in_pairs, "lsh:int4", 4):
        words = 2 * 4  # one tile each way
        headers = 2 * (24 + 16) + 4
        payloads = 2 * octavo.Plan("int4").payload_bytes(2048)
        assert sent == [headers + words + payloads, headers + words] * 2
        assert reused == [0, 1, 0, 1] and stats["reused_share"] == 0.5
    for _, reused, stats in two_ranks.run(sent_in_pairs, "delta+int4", 4):
        assert reused == [None] * 4 and "reused_share" not in stats


def sum_of_steady(rank: int, plan: str, steps: int) -> float:
    """Returns how far the mean of the averages of one and the same gradient is from the exact average."""
    ddp, _ = make_weight(plan)
    total = sum(averaged(ddp, normal_gradient(rank, 0, 2)) for _ in range(steps)) / steps
    exact = (normal_gradient(0, 0, 2) + normal_gradient(1, 0, 2)) / 2
    return float((total - exact).norm() / exact.norm())


def test_what_is_not_sent_of_a_steady_gradient_is_made_up_for_where_it_is_owed(two_ranks):
    """Estimates alone no longer change once they are near enough."""
    stays = two_ranks.run(sum_of_steady, "lsh:0.4:sign+ef21", 120)
    made_up = two_ranks.run(sum_of_steady, "lsh:0.4:sign+econtrol:0.5", 120)
    assert min(stays) > 0.2 and max(made_up) < 0.1


def refuse(rank: int) -> None:
    for plan in ("lsh:int4+ef", "lsh:int4+loco", "lsh:topk:0.01+dgc"):
        with pytest.raises(ValueError, match=r"lsh compares values .* write lsh:int4, which is lsh:int4\+ef21"):
            make_weight(plan)
    with pytest.raises(ValueError, match="a single call keeps nothing: use the codec inside lsh"):
        octavo.all_reduce(torch.ones(100), "lsh:int4")


def test_what_keeps_no_estimate_is_refused(two_ranks):
    two_ranks.run(refuse)
