# SPDX-License-Identifier: Apache-2.0
"""Stage 3 with modules of all kinds: what they return and what is done with it, and the models that it must refuse."""

from __future__ import annotations

import contextlib
import copy
import gc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from zero_runs import error_of, train

import octavo


@dataclass(slots=True)
class Both:
    main: Tensor
    extra: list[Tensor]


class InPlace(nn.Module):
    """Changes views in place that its children return: of three dimensions, a linear layer's result is one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.activation(self.first(x))
        z, _ = self.attention(y, y, y)
        z += y
        result = self.last(z)
        result += x
        return result.square().mean()


class Layers(nn.Module):
    """Returns its two results in a dataclass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Both:
        y = self.first(x).tanh()
        return Both(y, [self.last(y)])


class ByDataclass(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = Layers()
        self.scaled = Scaled()

    def forward(self, x: Tensor) -> Tensor:
        both = self.scaled(self.layers(x))
        return both.main.square().mean() + both.extra[0].mean()


class Scaled(nn.Module):
    """Has a parameter of its own, which only its backward pass needs again."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 2, 4))

    def forward(self, both: Both) -> Both:
        return Both(both.main * self.scale, [one * self.scale for one in both.extra])


class KeepsItsResult(nn.Module):
    """Lets a result leave a module other than by the return value."""

    def __init__(self) -> None:
        super().__init__()
        self.child = Kept()

    def forward(self, x: Tensor) -> Tensor:
        self.child(x)
        return self.child.result.square().mean()


class Kept(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)

    def forward(self, x: Tensor) -> None:
        self.result = super().forward(x) * self.bias


def built(make: Callable[[], nn.Module]) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = make()
    return model, torch.optim.SGD(model.parameters(), lr=0.3)


def engine_of(make: Callable[[], nn.Module], stage: int = 3, **config: Any) -> octavo.zero.ZeroEngine:
    return octavo.initialize(*built(make), {"zero_stage": stage, "reuse_mib": 0, **config})


def inputs_of(rank: int) -> Tensor:
    return torch.linspace(-1, 1 + rank, 24).reshape(2, 3, 4)


def losses(rank: int, make: Callable[[], nn.Module], stage: int) -> list[float]:
    engine = engine_of(make, stage)
    found = []
    for _ in range(3):
        loss = engine(inputs_of(rank))
        engine.backward(loss)
        engine.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("make", [InPlace, ByDataclass])
def test_what_modules_return_may_be_changed_in_place_and_be_in_a_dataclass(two_ranks, make):
    assert two_ranks.run(losses, make, 3) == two_ranks.run(losses, make, 1)


def keep_the_result(rank: int) -> str:
    engine = engine_of(KeepsItsResult)
    return error_of(lambda: engine.backward(engine(inputs_of(rank))))


def test_a_result_that_a_module_keeps_is_refused_with_what_would_work(two_ranks):
    for said in two_ranks.run(keep_the_result):
        assert "not whole" in said and "[zero." in said, said


def gather_twice(rank: int) -> None:
    engine = engine_of(lambda: nn.Linear(4, 4))
    weight = engine.module.weight
    with engine.gathered():
        with engine.gathered():
            pass
        before = weight.sum().item()
        engine.backward(engine(inputs_of(rank)).square().mean())
        engine.step()
        assert weight.sum().item() != before
        trained = engine.whole(weight).sum().item()
        assert weight.sum().item() == trained
    with pytest.raises(RuntimeError, match="not whole"):
        weight.sum()


def test_gathered_may_be_nested_and_go_on_over_steps(two_ranks):
    two_ranks.run(gather_twice)


class Segmented(nn.Module):
    """Uses a parameter of its own in two parts that are recomputed, and with `outside` also between them."""

    def __init__(self, reentrant: bool, outside: bool) -> None:
        super().__init__()
        self.reentrant, self.outside = reentrant, outside
        self.scale = nn.Parameter(torch.linspace(0.5, 2, 4))
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.first, self.last):
            # reentrant checkpointing differentiates only what has an input that needs a gradient
            x = x if x.requires_grad else x.detach().requires_grad_()
            x = checkpoint(lambda y, layer=layer: layer(y * self.scale).tanh(), x, use_reentrant=self.reentrant)
        return (x * self.scale if self.outside else x).square().mean()


@pytest.mark.parametrize("stage", [1, 3])
def test_a_parameter_may_be_used_in_several_parts_that_are_recomputed(two_ranks, stage):
    expected = two_ranks.run(losses, partial(Segmented, False, False), 1)
    for got, of_plain in zip(two_ranks.run(losses, partial(Segmented, True, False), stage), expected, strict=True):
        assert got == pytest.approx(of_plain, rel=1e-6)


class Recomputed(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = checkpoint(layer, x, use_reentrant=True)
        return x


def memory_of_layers(rank: int) -> list[int]:
    """Returns the bytes of the last two of three layers when backward has come to the first one."""
    engine = engine_of(lambda: Recomputed(*(nn.Linear(4, 4) for _ in range(3))))
    found = []
    x = inputs_of(rank).requires_grad_()
    loss = engine(x).square().mean()
    x.register_hook(lambda _: found.extend(layer.weight.untyped_storage().nbytes() for layer in engine.module[1:]))
    engine.backward(loss)
    return found


def test_a_module_that_is_recomputed_is_released_when_it_has_its_gradients(two_ranks):
    assert two_ranks.run(memory_of_layers) == [[0, 0], [0, 0]]


def differentiate_segments(rank: int, reentrant: bool) -> str:
    engine = engine_of(partial(Segmented, reentrant, True))
    return error_of(lambda: engine.backward(engine(inputs_of(rank))))


def test_a_parameter_that_is_also_used_outside_of_these_parts_is_refused_with_what_would_work(two_ranks):
    for said in two_ranks.run(differentiate_segments, True):
        assert "scale is not whole on rank" in said and "use_reentrant=False works" in said
    assert two_ranks.run(differentiate_segments, False) == ["", ""]


class Stopped(BaseException):
    pass


def stop_in_forward(rank: int) -> list[float]:
    """Rank 0 breaks off a pass of its own, by what is no Exception, so that torch calls no hooks after the module."""
    engine = engine_of(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))

    def stop(*_: object) -> None:
        raise Stopped

    with engine.gathered():
        if rank == 0:
            handle = engine.module[0].register_forward_pre_hook(stop)
            with contextlib.suppress(Stopped), torch.no_grad():
                engine.module(inputs_of(rank))
            handle.remove()
    with pytest.raises(RuntimeError, match="not whole"):
        engine.module[0].weight.sum()
    return train(engine, rank, 3)


def test_a_pass_that_is_broken_off_in_gathered_leaves_nothing_whole(two_ranks):
    for losses in two_ranks.run(stop_in_forward):
        assert losses == sorted(losses, reverse=True)


def differentiate(rank: int, stage: int) -> list[float]:
    engine = engine_of(lambda: nn.Linear(4, 4), stage)
    x = inputs_of(rank)
    mapped = torch.func.vmap(engine.module)(x)
    jacobian = torch.func.jacrev(lambda one: engine.module(one).sum())(x)
    _, tangent = torch.func.jvp(engine.module, (x,), (torch.ones_like(x),))
    values = [mapped.sum().item(), jacobian.sum().item(), tangent.sum().item()]
    loss = engine(x).square().mean()
    engine.backward(loss)
    engine.step()
    return [*values, loss.item()]


def test_torch_func_works_on_a_model_of_stage_3(two_ranks):
    assert two_ranks.run(differentiate, 3) == two_ranks.run(differentiate, 1)


def train_with_another_engine(rank: int, stage: int) -> tuple[int, int]:
    model, _ = built(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    for _ in range(3):
        engine = octavo.initialize(model, torch.optim.SGD(model.parameters(), lr=0.1), {"zero_stage": stage})
        engine.backward(engine(inputs_of(rank)).square().mean())
        engine.step()
        with engine.gathered():
            state = copy.deepcopy(model.state_dict())
        del engine
        gc.collect()
        for name, parameter in model.named_parameters():
            parameter.data = state[name]
    hooks = [len(module._forward_pre_hooks) + len(module._forward_hooks) for module in model.modules()]
    return sum(hooks), len(model[0].weight._post_accumulate_grad_hooks)


@pytest.mark.parametrize("stage", [1, 3])
def test_an_engine_that_is_gone_leaves_no_hooks_on_its_model(two_ranks, stage):
    assert two_ranks.run(train_with_another_engine, stage) == [(0, 0), (0, 0)]


def convert_after_an_engine(rank: int) -> torch.dtype:
    """Converts a model by swapping its parameters, which torch refuses where there are weak references to them."""
    model, optimizer = built(lambda: nn.Sequential(nn.Linear(4, 4)))
    engine = octavo.initialize(model, optimizer, {"zero_stage": 1})
    train(engine, rank, 1)
    del engine, optimizer
    gc.collect()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        return model.to(torch.bfloat16)[0].weight.dtype
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def test_a_model_may_be_converted_when_its_engine_is_gone(two_ranks):
    assert two_ranks.run(convert_after_an_engine) == [torch.bfloat16] * 2


def limit_a_norm() -> nn.Module:
    return nn.Sequential(nn.Embedding(8, 4, max_norm=1.0))


def share_memory() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight.data = model[0].weight.data
    return model


def share_frozen_memory() -> nn.Module:
    """The parameter that is trained lies in the memory of a frozen one, behind the begin of another frozen one."""
    memory = torch.zeros(100)
    model = nn.Module()
    model.whole = nn.Parameter(memory, requires_grad=False)
    model.small = nn.Parameter(memory[10:20], requires_grad=False)
    model.trained = nn.Parameter(memory[30:40])
    return model


def refused(rank: int, make: Callable[[], nn.Module]) -> str:
    return error_of(lambda: engine_of(make))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (limit_a_norm, "0 changes its weight in forward passes (max_norm)"),
        (share_memory, "0.weight and 1.weight share memory, which stage 3 would separate"),
        (share_frozen_memory, "whole and trained share memory, which stage 3 would separate"),
    ],
)
def test_models_that_stage_3_would_change_are_refused(one_rank, make, text):
    assert text in one_rank.run(refused, make)[0]


def refused_with_gather(rank: int) -> str:
    model = limit_a_norm()
    config = {"zero_stage": 1, "gather": "bf16"}
    return error_of(lambda: octavo.initialize(model, torch.optim.SGD(model.parameters()), config))


def test_a_norm_that_is_limited_is_refused_with_gather_too(one_rank):
    assert "0 changes its weight in forward passes (max_norm)" in one_rank.run(refused_with_gather)[0]


def limit_a_frozen_norm() -> nn.Module:
    model = nn.Sequential(nn.Embedding(8, 4, max_norm=1.0), nn.Linear(4, 4), *share_memory())
    for module in (model[0], model[2], model[3]):
        module.requires_grad_(False)
    return model


def test_what_is_frozen_stays_as_it_is_and_is_not_refused(one_rank):
    assert one_rank.run(refused, limit_a_frozen_norm) == [""]


def train_a_stranger(rank: int, stage: int) -> str:
    model, _ = built(lambda: nn.Linear(4, 4))
    temperature = nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([*model.parameters(), temperature], lr=0.1)
    return error_of(lambda: octavo.initialize(model, optimizer, {"zero_stage": stage}))


@pytest.mark.parametrize("stage", [1, 3])
def test_a_parameter_that_the_model_does_not_have_is_refused(two_ranks, stage):
    said = two_ranks.run(train_a_stranger, stage)[0]
    assert "1 of the optimizer's parameters, of shapes (), are not the model's, and would not be trained" in said


def names_beside_a_frozen_one(rank: int) -> list[str]:
    model, _ = built(lambda: nn.Linear(4, 4))
    model.weight.requires_grad_(False)
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.1)
    octavo.initialize(model, optimizer, {"zero_stage": 3})
    (group,) = optimizer.param_groups
    assert len(group["params"]) == 1
    return group["param_names"]


def test_names_of_the_optimizers_parameters_are_those_of_the_trained_ones(two_ranks):
    assert two_ranks.run(names_beside_a_frozen_one) == [["bias"], ["bias"]]


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"gather_mib": float("inf")}, "expected gather_mib as a finite number, got inf"),
        ({"is_paged": "no"}, "expected is_paged as True or False, got 'no'"),
        ({1: 2}, "the config has unknown keys: 1"),
    ],
)
def test_values_that_make_no_sense_are_refused(config, text):
    with pytest.raises(ValueError, match=text.replace("(", r"\(")):
        octavo.zero.ZeroConfig.of({"zero_stage": 3, **config})
