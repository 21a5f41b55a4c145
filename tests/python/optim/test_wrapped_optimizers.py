# SPDX-License-Identifier: Apache-2.0
"""Octavo's optimizers inside of wrappers that inherit their class, as Lightning's and Fabric's do."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate.optimizer import AcceleratedOptimizer
from lightning.fabric.wrappers import _FabricOptimizer
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import nn
from torch.optim import Optimizer

import octavo
from octavo.optim import AdamW8bit, DistributedLion, OneBitAdamW, OneBitLamb, Signum, ZeroOneAdam
from octavo.optim.joined import joined_optimizer


def by_fabric(optimizer: Optimizer) -> Any:
    return _FabricOptimizer(optimizer, strategy=SimpleNamespace())


def by_accelerate(optimizer: Optimizer) -> Any:
    wrapper = AcceleratedOptimizer.__new__(AcceleratedOptimizer)  # its __init__ asks for an Accelerator
    wrapper.optimizer = optimizer
    return wrapper


WRAPPERS = pytest.mark.parametrize("wrap", [LightningOptimizer, by_fabric])
JOINED = {
    OneBitAdamW: dict(warmup_steps=2),
    OneBitLamb: dict(warmup_steps=2),
    ZeroOneAdam: dict(var_freeze_step=8, local_step_scaler=4),
    Signum: {},
    DistributedLion: {},
}


def parameter_with_gradient() -> nn.Parameter:
    parameter = nn.Parameter(torch.ones(64))
    parameter.grad = torch.linspace(-1, 1, 64) ** 3
    return parameter


def stepped(wrap: Callable[[Optimizer], Any]) -> tuple[torch.Tensor, float]:
    parameter = parameter_with_gradient()
    optimizer = AdamW8bit([parameter], lr=0.1, eps=1.0)  # with which a step depends on the gradient's size
    norm = wrap(optimizer).clip_grad_norm_(0.01)
    optimizer.step()
    return parameter.detach(), norm.item()


@WRAPPERS
def test_a_clip_is_that_of_the_optimizers_next_step(wrap):
    (values, norm), (wrapped, same_norm) = stepped(lambda optimizer: optimizer), stepped(wrap)
    assert torch.equal(values, wrapped) and norm == same_norm


@WRAPPERS
def test_gradients_that_are_gone_take_their_clip_with_them(wrap):
    parameter = parameter_with_gradient()
    optimizer = AdamW8bit([parameter], lr=0.1)
    wrapped = wrap(optimizer)
    wrapped.clip_grad_norm_(0.01)
    wrapped.zero_grad()
    parameter.grad = torch.ones(64)
    optimizer.step()  # would be refused, since these gradients were not measured


@WRAPPERS
@pytest.mark.parametrize("make", JOINED)
def test_the_optimizer_itself_is_joined(wrap, make):
    optimizer = make([nn.Parameter(torch.ones(4))], lr=0.1, **JOINED[make])
    assert joined_optimizer(wrap(optimizer), "compress") is optimizer
    assert joined_optimizer(wrap(torch.optim.SGD(optimizer.param_groups[0]["params"])), "compress") is None


def anchors_of(rank: int) -> tuple[list[float], list[float]]:
    model = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(1.0)
    outer = octavo.Outer(model, torch.optim.SGD(model.parameters(), lr=0.1), "dense", every=4)
    model.weight.grad = torch.full((1, 4), 1.0 + rank)
    outer.step()
    with LightningOptimizer(outer).at_anchor():
        anchor, own = model.weight.flatten().tolist(), outer._own["weight"].flatten().tolist()
    return anchor, own


def test_the_anchor_is_that_of_outer_itself(two_ranks):
    for rank, (anchor, own) in enumerate(two_ranks.run(anchors_of)):
        assert anchor == [1.0] * 4
        assert own == pytest.approx([1.0 - 0.1 * (1 + rank)] * 4)


@pytest.mark.parametrize("wrap", [LightningOptimizer, by_fabric, by_accelerate])
@pytest.mark.parametrize("translate", [octavo.optim.to_torch, octavo.optim.to_bitsandbytes])
def test_the_states_of_the_optimizer_itself_are_translated(wrap, translate):
    optimizer = AdamW8bit([parameter_with_gradient()], lr=0.1)
    optimizer.step()
    torch.testing.assert_close(translate(wrap(optimizer)), translate(optimizer), rtol=0.0, atol=0.0)


@pytest.mark.parametrize("make", [OneBitAdamW, OneBitLamb, ZeroOneAdam])
@pytest.mark.parametrize("translate", [octavo.optim.to_torch, octavo.optim.to_bitsandbytes])
def test_states_without_a_form_of_other_libraries_are_refused(make, translate):
    optimizer = make([nn.Parameter(torch.ones(4))], lr=0.1, **JOINED[make])
    words = (
        rf"^\[optim\.{translate.__name__}\] expected an Adam, AdamW or Lion of octavo\.optim.*got a {make.__name__}$"
    )
    with pytest.raises(TypeError, match=words):
        translate(optimizer)
