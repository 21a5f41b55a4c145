# SPDX-License-Identifier: Apache-2.0
"""The clip that a step makes is of the gradients that were measured, and of no others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from octavo.optim import AdamW, AdamW8bit, Lion

LARGE, SMALL = 100.0, 0.01


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.ones(64)) for _ in range(2))

    def learn(self, size: float) -> None:
        (size * (self.a.sum() + self.b.sum())).backward()


def optimizer_of(model: Model, make: type = AdamW) -> torch.optim.Optimizer:
    options = {} if make is Lion else {"eps": 1.0, "weight_decay": 0.0}
    return make(model.parameters(), lr=0.1, **options)


def clipped(make: type = AdamW) -> tuple[Model, torch.optim.Optimizer]:
    """Returns a model and its optimizer, which has measured large gradients and made no step."""
    model = Model()
    optimizer = optimizer_of(model, make)
    model.learn(LARGE)
    optimizer.clip_grad_norm_(1e-3)
    return model, optimizer


def moved(model: Model) -> float:
    return float((model.a.detach() - 1).abs().max())


@pytest.mark.parametrize("make", [AdamW, AdamW8bit, Lion])
def test_the_models_zero_grad_ends_a_clip(make: type):
    model, optimizer = clipped(make)
    model.zero_grad()
    model.learn(SMALL)
    optimizer.step()
    fresh = Model()
    fresh.learn(SMALL)
    optimizer_of(fresh, make).step()
    assert torch.equal(model.a, fresh.a) and torch.equal(model.b, fresh.b)


def in_place(model: Model) -> None:
    model.zero_grad(set_to_none=False)
    model.learn(SMALL)


def one_of_two(model: Model) -> None:
    model.b.grad = torch.full_like(model.b, SMALL)


def accumulated(model: Model) -> None:
    model.learn(SMALL)


def scaled(model: Model) -> None:
    model.a.grad.mul_(0.5)


@pytest.mark.parametrize("change", [in_place, one_of_two, accumulated, scaled])
def test_gradients_that_are_not_those_that_were_measured_are_refused(change: Callable[[Model], None]):
    model, optimizer = clipped()
    change(model)
    with pytest.raises(RuntimeError, match=r"^\[optim\.AdamW\] gradients were added, replaced or changed after clip_"):
        optimizer.step()
    assert torch.equal(model.a, torch.ones(64)) and not optimizer.state
    optimizer.clip_grad_norm_(1e-3)
    optimizer.step()
    assert moved(model) < 1e-4
    optimizer.zero_grad()
    model.learn(LARGE)
    optimizer.step()
    assert moved(model) > 1e-2


def test_a_gradient_that_is_gone_does_not_end_the_clip_of_the_others():
    model, optimizer = clipped()
    model.b.grad = None
    optimizer.step()
    assert 0 < moved(model) < 1e-4 and torch.equal(model.b, torch.ones(64))


def test_gradients_of_inference_mode_are_clipped():
    model = Model()
    optimizer = AdamW(model.parameters(), lr=0.1, eps=1.0, weight_decay=0.0)
    with torch.inference_mode():
        model.a.grad = torch.full((64,), LARGE)
        optimizer.clip_grad_norm_(1e-3)
        optimizer.step()
    assert 0 < moved(model) < 1e-4
