# SPDX-License-Identifier: Apache-2.0
"""The buffers of ranks that make steps of their own: sent at the beginning, finite afterwards."""

from __future__ import annotations

import copy
import math
import warnings

import pytest
import torch
from outer_runs import Net, train
from torch import nn
from train_runs import solo_world

import octavo


def buffers_of_any_dtype(rank: int) -> list[torch.Tensor]:
    model = Net()
    for i, dtype in enumerate((torch.int16, torch.uint16, torch.float8_e4m3fn, torch.bool, torch.complex64)):
        model.register_buffer(f"buffer{i}", torch.full((2, 3), rank + 1).to(dtype))
    model.register_buffer("transposed", torch.full((2, 3), rank + 1, dtype=torch.int16).t())
    model.register_buffer("conjugate", torch.full((2, 3), 1j * rank + 1, dtype=torch.complex64).conj())
    model.register_buffer("number", torch.tensor(rank + 1, dtype=torch.int16))
    train(rank, 0, model)
    return [buffer.to(torch.complex64) for name, buffer in model.named_buffers() if name != "count"]


def test_buffers_of_any_dtype_are_sent_around(two_ranks):
    for buffers in two_ranks.run(buffers_of_any_dtype):
        assert len(buffers) == 8
        assert all(torch.equal(buffer, torch.ones_like(buffer)) for buffer in buffers)


@pytest.mark.parametrize("spoil", [lambda buffer: buffer[:1].expand(2), lambda buffer: buffer.to_sparse()])
def test_buffers_that_cannot_be_written_are_named(spoil):
    with solo_world():
        model = Net()
        model.count = spoil(model.count)
        with pytest.raises(ValueError, match="the buffer count is sparse or expanded"):
            octavo.Outer(model, torch.optim.SGD(model.parameters()))


def test_a_buffer_with_a_nan_is_what_it_was_at_the_last_round():
    with solo_world():
        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
        outer = octavo.Outer(model, torch.optim.SGD(model.parameters(), lr=0.1), plan="dense", every=2)
        for step in range(6):
            if step == 2:
                at_last_round = model[1].running_mean.clone()
            x = torch.randn(4, 8, generator=torch.Generator().manual_seed(step))
            loss = model(x * float("nan") if step == 2 else x).square().mean()
            outer.zero_grad()
            loss.backward()
            if step == 3:
                with pytest.warns(UserWarning, match="was skipped by all ranks") as told:
                    outer.step()
                assert told[0].filename == __file__  # where the caller can look
                assert torch.equal(model[1].running_mean, at_last_round)
            else:
                outer.step()
        assert outer.stats()["skipped_rounds"] == 1
        assert all(bool(torch.isfinite(buffer).all()) for buffer in model.buffers())


class Centered(nn.Module):
    """Puts another tensor in the place of its buffer in every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return x - self.mean


@pytest.mark.parametrize("make", [torch.optim.SGD, octavo.optim.AdamW8bit])
@pytest.mark.parametrize("normalize", [Centered, lambda: nn.BatchNorm1d(8)])
def test_one_nan_leaves_no_buffer_spoiled(make, normalize):
    """AdamW8bit leaves out elements whose gradient is not finite, so that no round is skipped."""
    with solo_world(), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model = nn.Sequential(nn.Linear(8, 8), normalize())
        outer = octavo.Outer(model, make(model.parameters(), lr=0.01), plan="dense", every=2)
        for step in range(12):
            x = torch.randn(4, 8, generator=torch.Generator().manual_seed(step))
            outer.zero_grad()
            model(x * float("nan") if step == 2 else x).square().mean().backward()
            outer.step()
        assert outer.stats()["skipped_rounds"] == (1 if make is torch.optim.SGD else 0)
        assert all(bool(torch.isfinite(buffer).all()) for buffer in model.buffers())
    if make is not torch.optim.SGD:
        ours = [one for one in told if "had a NaN or an infinity at the end" in str(one.message)]
        assert ours and all("of this rank, 0," in str(one.message) and one.filename == __file__ for one in ours)


class Masked(nn.Linear):
    """Has a mask with -inf, a buffer that begins at -inf and becomes finite, and one that every pass makes longer."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.register_buffer("mask", torch.full((8, 8), -math.inf).triu(1))
        self.register_buffer("counts", torch.full((8,), -math.inf))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.counts.copy_(torch.logaddexp(self.counts, torch.zeros(8)))
        self.register_buffer("seen", torch.ones(len(getattr(self, "seen", ())) + 1), persistent=False)
        return super().forward(x)


def train_masked(steps: range, state: dict | None = None) -> tuple[nn.Module, dict]:
    model = Masked()
    outer = octavo.Outer(model, torch.optim.SGD(model.parameters(), lr=0.01), plan="dense", every=2)
    if state is not None:
        outer.load_state_dict(state)
    for step in steps:
        outer.zero_grad()
        model(torch.randn(4, 8, generator=torch.Generator().manual_seed(step))).square().mean().backward()
        outer.step()
    return model, copy.deepcopy(outer.state_dict())


def test_buffers_with_infinities_of_their_own_are_left_alone_and_new_ones_are_taken():
    with solo_world(), warnings.catch_warnings():
        warnings.simplefilter("error")
        expected, _ = train_masked(range(7))
        _, state = train_masked(range(4))
        model, _ = train_masked(range(4, 7), state)
    for one in (expected, model):
        assert one.counts.tolist() == pytest.approx([math.log(7)] * 8)
        assert torch.equal(one.mask, torch.full((8, 8), -math.inf).triu(1))


class Normalized(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(8, 8), nn.BatchNorm1d(8))


def test_what_is_kept_can_be_made_in_inference_mode():
    """As by an evaluation that begins a run, or by a load inside of it."""
    with solo_world():
        model = Normalized()
        outer = octavo.Outer(model, torch.optim.SGD(model.parameters(), lr=0.1), "dense", every=2)
        with torch.inference_mode():
            outer.synchronize()
            outer.load_state_dict(copy.deepcopy(outer.state_dict()))
        for _ in range(4):
            outer.zero_grad()
            model(torch.randn(4, 8)).square().mean().backward()
            outer.step()
        assert outer.stats()["rounds"] >= 2
