# SPDX-License-Identifier: Apache-2.0
"""Optimizers that come to ZeRO with a state, or with operators that parts of parameters do not have."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector
from zero_runs import TiedAndFrozen, error_of, inputs_of, loss_of, net, step_once, train

import octavo


def train_alone(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        torch.stack([model(inputs_of(rank)).square().mean() for rank in range(2)]).mean().backward()
        optimizer.step()


def values_of(model: nn.Module) -> list[float]:
    return parameters_to_vector(model.parameters()).tolist()


def go_on_from(
    rank: int, make: Callable[..., torch.optim.Optimizer], stage: int, before: int
) -> tuple[list[float], list[float]]:
    """Returns the parameters after 6 steps of one process, and after `before` of these and the rest by ZeRO."""
    alone, model = net(), net()
    train_alone(alone, make(alone.parameters()), 6)
    optimizer = make(model.parameters())
    train_alone(model, optimizer, before)
    for state in optimizer.state.values() if rank == 1 else ():  # rank 0's counts
        for value in state.values():
            value.fill_(7)
    engine = octavo.initialize(model, optimizer, {"zero_stage": stage})
    train(engine, rank, 6 - before)
    with engine.gathered():
        return values_of(alone), values_of(model)


@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize(
    ("make", "before"),
    [
        (partial(torch.optim.AdamW, lr=0.1), 3),
        (partial(torch.optim.SGD, lr=0.3, momentum=0.9), 2),
        (partial(torch.optim.Adagrad, lr=0.1), 0),  # a new one has its sums already
        (partial(torch.optim.Adagrad, lr=0.1), 2),
        (partial(octavo.optim.AdamW8bit, lr=0.1, min_8bit_size=10**6), 3),
    ],
    ids=["adamw", "sgd", "new-adagrad", "adagrad", "octavo"],
)
def test_an_optimizer_goes_on_from_the_state_that_it_has(two_ranks, make, before, stage):
    for alone, shared in two_ranks.run(go_on_from, make, stage, before):
        assert shared == pytest.approx(alone, rel=1e-4, abs=1e-6)


def of_sizes(rank: int, make: Callable[..., torch.optim.Optimizer], stage: int | None) -> tuple[list[float], int]:
    """Returns the losses and the bytes of the optimizer's state; without a stage the losses of DDP."""
    model = TiedAndFrozen()
    optimizer = make(model.parameters())
    if stage is not None:
        engine = octavo.initialize(model, optimizer, {"zero_stage": stage})
        return [step_once(engine, rank, batch) for batch in range(6)], engine.optimizer_bytes()
    ddp, losses = DistributedDataParallel(model, find_unused_parameters=True), []
    for batch in range(6):
        optimizer.zero_grad()
        loss = loss_of(ddp, rank, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, 0


@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize("name", ["Adam4bit", "AdamW4bit"])
def test_states_of_four_bits_train_as_by_ddp(two_ranks, name, stage):
    """They are near, and not equal: blocks of codes begin where a rank's part does."""
    narrow = partial(getattr(octavo.optim, name), lr=1e-3, min_8bit_size=512)
    wide = partial(getattr(octavo.optim, name.removesuffix("4bit")), lr=1e-3)
    by_ddp, of_wide, of_narrow = (
        two_ranks.run(of_sizes, *case) for case in ((narrow, None), (wide, stage), (narrow, stage))
    )
    for (expected, _), (_, wide_bytes), (losses, narrow_bytes) in zip(by_ddp, of_wide, of_narrow, strict=True):
        assert losses == pytest.approx(expected, rel=0.01) and losses[-1] < losses[0]
        assert narrow_bytes < wide_bytes / 6


@pytest.mark.parametrize("stage", [1, 3])
def test_lion_trains_as_by_ddp(two_ranks, stage):
    """The signs of two ranks' averages are DDP's, whose sums have the same order."""
    make = partial(octavo.optim.Lion, lr=1e-3, weight_decay=0.1)
    expected, got = two_ranks.run(of_sizes, make, None), two_ranks.run(of_sizes, make, stage)
    for (of_ddp, _), (losses, _) in zip(expected, got, strict=True):
        assert losses == of_ddp and losses[-1] < losses[0]


def with_codes(rank: int) -> list[bool]:
    torch.manual_seed(0)
    model = nn.Linear(64, 256, bias=False)
    optimizer = octavo.optim.AdamW8bit(model.parameters(), lr=0.1, min_8bit_size=0)
    model(torch.ones(2, 64)).square().mean().backward()
    optimizer.step()
    moment = octavo.optim.to_torch(optimizer)["state"][0]["exp_avg"].flatten()
    engine = octavo.initialize(model, optimizer, {"zero_stage": 2})
    first, count = engine.owned(engine.parts[model.weight])
    own = octavo.optim.to_torch(engine.optimizer)["state"][0]["exp_avg"].to_local()
    return [len(own) == count, torch.allclose(own, moment[first : first + count], rtol=0.01, atol=1e-8)]


def test_codes_are_shared_out_as_what_they_mean(two_ranks):
    assert two_ranks.run(with_codes) == [[True, True]] * 2


def with_states_of_other_shapes(rank: int) -> tuple[str, bool]:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.state[model[0].weight]["row"] = torch.zeros(4)
    said = error_of(lambda: octavo.initialize(model, optimizer, {"zero_stage": 1}))
    return said, optimizer.param_groups[0]["params"][0] is model[0].weight and bool(optimizer.state)


def test_a_state_that_cannot_be_shared_out_is_refused(two_ranks):
    for said, is_as_before in two_ranks.run(with_states_of_other_shapes):
        assert "the optimizer keeps row of 0.weight as (4,) of (4, 4)" in said and is_as_before


def with_operators_that_dtensors_lack(rank: int, make: Callable[..., torch.optim.Optimizer]) -> list[str]:
    model = net()
    engine = octavo.initialize(model, make(model.parameters(), lr=0.1), {"zero_stage": 1})
    return [error_of(lambda: train(engine, rank)), error_of(engine.step)]


@pytest.mark.parametrize(
    ("make", "advice"),
    [(partial(torch.optim.SGD, fused=True), "make it without fused=True, or take"), (torch.optim.Rprop, "): take")],
    ids=["sgd", "rprop"],
)
def test_an_optimizer_without_operators_for_parts_is_named(two_ranks, make, advice):
    for said, later in two_ranks.run(with_operators_that_dtensors_lack, make):
        assert "works with operators that torch does not have" in said and f"{advice} another optimizer" in said
        assert "an earlier error stopped this engine" in later


class Scaled(nn.Module):
    """A model with a parameter of no dimension, as CLIP has."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.scale = net(), nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) * self.scale


def go_on_with_a_scale(rank: int, make: Callable[..., torch.optim.Optimizer]) -> tuple[list[float], list[float]]:
    alone, model = Scaled(), Scaled()
    train_alone(alone, make(alone.parameters(), lr=0.1), 5)
    optimizer = make(model.parameters(), lr=0.1)
    train_alone(model, optimizer, 3)
    engine = octavo.initialize(model, optimizer, {"zero_stage": 1})
    train(engine, rank, 2)
    return values_of(alone), values_of(model)


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.NAdam, torch.optim.ASGD])
def test_numbers_of_a_parameter_without_dimensions_stay_numbers(two_ranks, make):
    for alone, shared in two_ranks.run(go_on_with_a_scale, make):
        assert shared == pytest.approx(alone, rel=1e-4, abs=1e-6)


def with_hooks(rank: int, make: Callable[..., torch.optim.Optimizer], folder: str) -> list[float]:
    model = net()
    optimizer = make(model.parameters(), lr=0.1)
    train_alone(model, optimizer, 1)
    optimizer.register_state_dict_post_hook(lambda _, state: {"wrapped": state})
    optimizer.register_load_state_dict_pre_hook(lambda _, state: state["wrapped"])
    engine = octavo.initialize(model, optimizer, {"zero_stage": 1})
    train(engine, rank, 1)
    engine.save_checkpoint(folder)
    train(engine, rank, 1)
    expected = values_of(model)
    engine.load_checkpoint(folder)
    train(engine, rank, 1)
    return [a - b for a, b in zip(values_of(model), expected, strict=True)]


@pytest.mark.parametrize("make", [torch.optim.AdamW, octavo.optim.AdamW8bit])
def test_hooks_that_wrap_states_do_not_reach_the_engine(two_ranks, make, tmp_path):
    for differences in two_ranks.run(with_hooks, make, str(tmp_path / "one")):
        assert not any(differences)


class HalfAStep(torch.optim.SGD):
    """An optimizer that has moved a parameter when it finds what it cannot go on with."""

    def step(self, closure=None):
        self.param_groups[0]["params"][0].data.add_(1)
        raise FloatingPointError("a gradient is not finite")


def refuse_a_step(rank: int, make: Callable[..., torch.optim.Optimizer], folder: str) -> list[str]:
    """Rank 1 has a NaN in the first step. Returns the errors of this step, and of a save and a step after it."""
    model = net()
    engine = octavo.initialize(model, make(model.parameters(), lr=0.1), {"zero_stage": 2})
    before = values_of(model)
    loss = engine(inputs_of(rank)).square().mean()
    engine.backward(loss * float("nan") if rank == 1 else loss)
    with pytest.raises(FloatingPointError) as refusal:
        engine.step()
    assert (values_of(model) == before) == ("as they were before the step" in str(refusal.value))
    attempts = (lambda: engine.save_checkpoint(folder), lambda: train(engine, rank, 1))
    return [str(refusal.value), *map(error_of, attempts)]


def test_a_step_that_octavos_optimizer_refuses_has_changed_nothing(two_ranks, tmp_path):
    make = partial(octavo.optim.AdamW, nonfinite="raise")
    for said, *later in two_ranks.run(refuse_a_step, make, str(tmp_path / "one")):
        assert "all parameters and states are as they were before the step" in said
        assert later == ["", ""]


def test_half_a_step_of_another_optimizer_ends_the_engine(two_ranks, tmp_path):
    for _, *later in two_ranks.run(refuse_a_step, HalfAStep, str(tmp_path / "one")):
        assert all("an earlier error stopped this engine" in said for said in later)
