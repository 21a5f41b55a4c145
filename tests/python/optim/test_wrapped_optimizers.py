# SPDX-License-Identifier: Apache-2.0
"""Octavo's optimizers inside of wrappers that inherit their class, as Lightning's and Fabric's do."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate.optimizer import AcceleratedOptimizer
from lightning.fabric.wrappers import _FabricOptimizer
from lightning.pytorch.core.optimizer import LightningOptimizer
from lion_runs import Given, gradients_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from zero_one_runs import KINDS, build, run_step
from zero_one_runs import wrap as wrap_zero_one

import octavo
from octavo.optim import AdamW8bit, DistributedLion, Lion, OneBitAdamW, OneBitLamb, Signum, ZeroOneAdam
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


def synchronized(rank: int, wrap: Callable[[Optimizer], Any]) -> list[float]:
    model, _, optimizer = wrap_zero_one()
    for step in range(15):
        run_step(model, optimizer, gradients_of(rank, step))
    assert KINDS[14] == "l"
    before = model.module.weight.detach().clone()
    wrap(optimizer).synchronize()
    assert not torch.equal(model.module.weight, before)
    return model.module.weight.flatten().tolist()


@WRAPPERS
def test_synchronize_averages_the_updates_of_the_optimizer_itself(two_ranks, wrap):
    first, second = two_ranks.run(synchronized, wrap)
    assert first == second


def told(rank: int, wrap: Callable[[Optimizer], Any], ask: Callable[[Any], Any]) -> list[Any]:
    """Returns what `ask` learns from the optimizer after each backward pass. A GradScaler may leave out the step()."""
    model, _, optimizer = wrap_zero_one()
    answers = []
    for step in range(24):
        optimizer.zero_grad()
        model(*gradients_of(rank, step)).backward()
        answers.append(ask(wrap(optimizer)))
        optimizer.step()
    return answers


def next_kind_of(optimizer: ZeroOneAdam) -> str:
    return optimizer.next_kind


def saved_steps_of(optimizer: ZeroOneAdam) -> int:
    return optimizer.state_dict()["param_groups"][0]["steps"]


@WRAPPERS
def test_the_last_step_is_counted_before_the_next_kind_is_told(one_rank, wrap):
    names = {"v": "variance", "s": "sync", "l": "local"}
    assert one_rank.run(told, wrap, next_kind_of) == [[names[kind] for kind in KINDS[1:25]]]


def test_the_last_step_is_counted_before_the_state_is_saved(one_rank):
    assert one_rank.run(told, LightningOptimizer, saved_steps_of) == [list(range(1, 25))]


def lion_of_two_groups(rank: int, wrap: Callable[[Optimizer], Any]) -> None:
    """The handle must make updates of a parameter that is added after the join."""
    model = DistributedDataParallel(Given())
    optimizer = DistributedLion([model.module.weight], betas=(0.75, 0.99))
    octavo.compress(model, "dense", optimizer=optimizer)
    wrap(optimizer).add_param_group({"params": [model.module.bias]})
    gradients = gradients_of(rank, 0)
    model(*gradients).backward()
    torch.testing.assert_close(model.module.bias.grad, 0.25 * gradients[1])


@WRAPPERS
def test_the_handle_makes_the_updates_of_a_parameter_that_was_added(one_rank, wrap):
    one_rank.run(lion_of_two_groups, wrap)


def zero_one_of_two_groups(rank: int, wrap: Callable[[Optimizer], Any]) -> list[float]:
    module = Given()
    optimizer = build([module.weight])
    model = DistributedDataParallel(module)
    octavo.compress(model, "dense", optimizer=optimizer)
    model(*gradients_of(rank, 0)).backward()
    wrap(optimizer).add_param_group({"params": [module.bias]})
    optimizer.step()
    for step in range(1, 12):
        run_step(model, optimizer, gradients_of(rank, step))
    return [*module.weight.flatten().tolist(), *module.bias.tolist()]


def unwrapped(optimizer: Optimizer) -> Optimizer:
    return optimizer


@WRAPPERS
def test_a_group_is_added_after_the_last_step_is_counted(one_rank, wrap):
    assert one_rank.run(zero_one_of_two_groups, wrap) == one_rank.run(zero_one_of_two_groups, unwrapped)


def add_a_stranger(rank: int, wrap: Callable[[Optimizer], Any]) -> None:
    for make, options in JOINED.items():
        model = DistributedDataParallel(Given())
        optimizer = make(model.parameters(), lr=0.1, **options)
        octavo.compress(model, "dense" if make in (Signum, DistributedLion) else "sign+ef", optimizer=optimizer)
        with pytest.raises(ValueError, match="1 of the optimizer's parameters are not of the model"):
            wrap(optimizer).add_param_group({"params": [nn.Parameter(torch.ones(4))]})
        assert len(optimizer.param_groups) == 1


@WRAPPERS
def test_a_parameter_that_the_model_lacks_is_not_added(one_rank, wrap):
    one_rank.run(add_a_stranger, wrap)


@WRAPPERS
@pytest.mark.parametrize("make", [AdamW8bit, Lion, *JOINED])
def test_a_state_is_loaded_into_the_optimizer_itself(wrap, make):
    trained, resumed = (make([parameter_with_gradient()], lr=lr, **JOINED.get(make, {})) for lr in (0.1, 0.2))
    for _ in range(3):
        trained.step()
    state = trained.state_dict() if wrap is by_fabric else wrap(trained).state_dict()
    wrap(resumed).load_state_dict(copy.deepcopy(state))
    assert str(resumed.state_dict()) == str(state)


@WRAPPERS
def test_what_a_step_left_alone_is_told(wrap):
    parameter = parameter_with_gradient()
    parameter.grad[0] = torch.inf
    optimizer = AdamW8bit([parameter])
    optimizer.step()
    assert wrap(optimizer).saw_nonfinite() and not optimizer.saw_nonfinite()


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
