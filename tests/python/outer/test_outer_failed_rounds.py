# SPDX-License-Identifier: Apache-2.0
"""Rounds that fail: values that are not finite, a rank that stays away, an anchor that cannot be set."""

from __future__ import annotations

import math
import warnings
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from ddp_runs import digest
from outer_runs import Net, digest_of_shared, give_gradients, train, values_of
from torch import nn
from train_runs import solo_world

import octavo

pytestmark = pytest.mark.timeout(120)


def poison(rank: int, fragments: int, delay: int):
    """Rank 1's gradient at step 5 is NaN; rounds have 4 steps. Returns what the ranks were told, and where they end."""
    model = Net()
    outer = octavo.Outer(
        model, torch.optim.AdamW(model.parameters(), lr=0.01), plan="int4+ef", every=4, fragments=fragments, delay=delay
    )
    told = []
    for step in range(12 if fragments == 1 else 16):
        give_gradients(model, rank, step)
        if (rank, step) == (1, 4):
            model.last.weight.grad[3, 3] = float("nan")
            for parameter in model.parameters():  # as after a backward pass through a NaN
                if parameter.grad is not None:
                    parameter.grad.fill_(float("nan"))
        if step == 5:
            before = {key: value.clone() for key, value in outer.state_dict()["shared"].items()}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            outer.step()
        told += [f"{step}: {one.message}" for one in caught if "[outer" in str(one.message)]
        if step == 7 and fragments == 1 and delay == 0:
            after = outer.state_dict()["shared"]
            assert all(torch.equal(before[key], after[key]) for key in before)
    anchors = outer.state_dict()["shared"]
    assert all(bool(torch.isfinite(values).all()) for values in [*anchors.values(), *values_of(model)])
    return told, digest_of_shared(outer), outer.stats()["skipped_rounds"]


def test_a_nan_on_one_rank_skips_that_round_on_all_and_the_next_is_clean(two_ranks):
    (told_0, anchors_0, skipped_0), (told_1, anchors_1, skipped_1) = two_ranks.run(poison, 1, 0)
    assert anchors_0 == anchors_1
    assert skipped_0 == skipped_1 == 1
    said = (
        "7: [outer.step] round 2 of fragment 0 was skipped by all ranks, because rank 1 had a NaN or an infinity in it"
    )
    assert told_0 == [f"{said}; this rank, 0, goes on from its own parameters"]
    assert told_1 == [f"{said}; this rank, 1, goes back to where its round began"]


def test_a_nan_does_not_spread_from_fragment_to_fragment(two_ranks):
    (told_0, anchors_0, _), (told_1, anchors_1, _) = two_ranks.run(poison, 2, 1)
    assert anchors_0 == anchors_1
    assert 1 <= len(told_0) == len(told_1) <= 2
    assert all("because rank 1 had" in one for one in told_0 + told_1)


class NestedAdam(torch.optim.SGD):
    """An optimizer with its state in lists and a number, as some others have it."""

    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                state = self.state[parameter]
                mean = state.setdefault("moments", [torch.zeros_like(parameter)])[0]
                mean.lerp_(parameter.grad, 0.1)
                state["norm"] = state.get("norm", 0.0) + float(parameter.grad.norm())
                parameter.data.add_(mean, alpha=-0.01 if math.isfinite(state["norm"]) else math.nan)


def skipped_after_a_nan(inner_of, steps: int) -> int:
    """Returns how many rounds of one step are skipped where a gradient of the first one is NaN."""
    with solo_world():
        model = Net()
        outer = octavo.Outer(model, inner_of(model), plan="dense", every=1)
        for step in range(steps):
            give_gradients(model, 0, step)
            if step == 0:
                model.last.weight.grad.fill_(float("nan"))
                with pytest.warns(UserWarning, match="rank 0 had a NaN"):
                    outer.step()
            else:
                outer.step()
        return outer.stats()["skipped_rounds"]


def test_a_nan_is_forgotten_however_deep_it_is_in_a_state():
    assert skipped_after_a_nan(lambda model: NestedAdam(model.parameters()), 4) == 1


def lost_peer(rank: int) -> str:
    model = Net()
    outer = octavo.Outer(model, torch.optim.SGD(model.parameters()), plan="sign+ef", every=2, timeout_s=3)
    store = torch.distributed.distributed_c10d._get_default_store()
    for step in range(1 if rank == 1 else 2):
        give_gradients(model, rank, step)
        try:
            outer.step()
        except TimeoutError as error:
            store.set(f"raised by {rank}", "")
            return str(error)
    if rank == 1:  # it does not leave before the others have waited in vain
        store.wait(["raised by 0", "raised by 2"])
    return ""


def test_a_round_that_waits_in_vain_says_for_whom_and_what_to_do(three_ranks):
    said = three_ranks.run(lost_peer)
    for rank in (0, 2):
        assert said[rank].startswith("[outer.step] a round failed: [comm."), said[rank]
        assert "with rank 1" in said[rank] and "in the same round" in said[rank], said[rank]


class Parts:
    """Combines several optimizers, as Muon and AdamW are used side by side."""

    def __init__(self, model: nn.Module):
        self.parts = [torch.optim.AdamW([p], lr=0.01) for p in model.parameters() if p.requires_grad]

    @property
    def param_groups(self):
        return [group for part in self.parts for group in part.param_groups]

    @property
    def state(self):
        return {parameter: state for part in self.parts for parameter, state in part.state.items()}

    def step(self):
        for part in self.parts:
            part.step()


def test_what_an_optimizer_of_several_parts_remembers_of_a_nan_is_forgotten():
    assert skipped_after_a_nan(Parts, 3) == 1


def test_an_anchor_beyond_the_parameters_dtype_is_told():
    """Otherwise every round would be skipped, forever."""
    with solo_world():
        model = nn.Linear(4, 4).half()
        outer = octavo.Outer(model, torch.optim.SGD(model.parameters(), lr=1.0), plan="dense", every=1, lr=3.0)
        with pytest.raises(ValueError, match="the anchor of weight has left the range of Half"):
            for _ in range(8):
                model.weight.grad = torch.full_like(model.weight, 1.5e4)
                outer.step()


def in_halves_with_a_nan(rank: int) -> tuple[int, bool]:
    """Rank 1 has a NaN while a round is under way, which was sent before."""
    model = nn.Linear(64, 64).half()
    inner = torch.optim.SGD(model.parameters(), lr=0.01)
    outer = octavo.Outer(model, inner, "dense", every=4, delay=2, mix=0.5, timeout_s=30)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(12):
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            if rank == 1 and step == 2:
                model.weight.grad[0, 0] = float("nan")
            outer.step()
    return outer.stats()["skipped_rounds"], all(p.isfinite().all() for p in model.parameters())


def test_a_nan_of_one_rank_is_not_taken_for_one_of_the_anchor(two_ranks):
    assert two_ranks.run(in_halves_with_a_nan) == [(1, True)] * 2


def test_a_nan_is_forgotten_where_warnings_are_errors():
    with solo_world():
        model, outer = train(0, 1, plan="dense", every=1)
        model.last.weight.data[0, 0] = float("nan")
        outer.inner.state[model.last.weight]["exp_avg"][0, 0] = float("nan")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(UserWarning, match="was skipped"):
                outer.count_step()
        give_gradients(model, 0, 1)
        outer.step()
        assert outer.stats()["skipped_rounds"] == 1


def synchronized_with_a_nan(rank: int) -> tuple[list[str], str]:
    model, outer = train(rank, 5, plan="int4+ef", every=4)
    if rank == 1:
        model.first.weight.data[0, 0] = float("nan")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        outer.synchronize()
        outer.synchronize()
    assert all(bool(torch.isfinite(values).all()) for values in values_of(model))
    return [str(one.message) for one in caught if "[outer" in str(one.message)], digest(model)


def test_a_synchronization_that_is_skipped_ends_at_the_anchor_on_all_ranks(two_ranks):
    (told_0, ends_0), (told_1, ends_1) = two_ranks.run(synchronized_with_a_nan)
    assert ends_0 == ends_1
    assert len(told_0) == len(told_1) == 1
    assert told_0[0].startswith("[outer.synchronize]")
    assert told_0[0].endswith("because rank 1 had a NaN or an infinity in it; this rank, 0, goes back to the anchor")


def test_an_anchor_that_cannot_be_set_leaves_the_ranks_own_parameters(monkeypatch):
    with solo_world():
        model, outer = train(0, 5, plan="dense", every=4)
        own = values_of(model)
        with monkeypatch.context() as patch:
            anchors = {**outer._outer.anchors(), "last.weight": torch.zeros(2, 2)}
            patch.setattr(outer, "_outer", SimpleNamespace(anchors=lambda: anchors))
            with pytest.raises(RuntimeError, match="size"), outer.at_anchor():
                pass
        assert all(map(torch.equal, values_of(model), own))
        outer.synchronize()


def refuse_one_round(rank: int, is_finite: bool) -> list[str]:
    """Rank 0 cannot end the first round, which the others have ended, or skipped because of a NaN of rank 0."""
    model = nn.Linear(8, 8, bias=False)
    outer = octavo.Outer(model, torch.optim.SGD(model.parameters(), lr=0.1), plan="dense", every=4, delay=1)
    said = []
    for step in range(5):
        model.weight.grad = torch.full_like(model.weight, rank + 1.0)
        if rank == 0 and step == 0 and not is_finite:
            model.weight.grad[0, 0] = math.nan
        if rank == 0 and step == 3:
            kept = model.weight.data
            model.weight.data = kept.t().contiguous().t()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a round that was skipped
                outer.step()
        except ValueError as error:
            said.append(str(error))
            model.weight.data = kept
    with pytest.raises(ValueError, match="weight now has the sizes") if rank == 0 else nullcontext():
        outer.state_dict()
    return said


@pytest.mark.parametrize("is_finite", [True, False])
def test_a_rank_that_could_not_end_a_round_does_not_go_on_from_another_anchor(is_finite: bool, two_ranks):
    said, others = two_ranks.run(refuse_one_round, is_finite)
    assert len(said) == 2 and all("weight now has the sizes" in text for text in said)
    assert others == []
