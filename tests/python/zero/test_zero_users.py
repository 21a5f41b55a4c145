# SPDX-License-Identifier: Apache-2.0
"""What users do with an engine besides its passes: where their models come from, what they change, copy and load."""

from __future__ import annotations

import copy
import gc
import warnings
import weakref
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, spectral_norm, vector_to_parameters, weight_norm
from zero_runs import adamw, engine_of, error_of, inputs_of, net, of_plain, train

import octavo

# ---- where the memory of parameters comes from


def from_elsewhere(rank: int, how: str, folder: str) -> list[float]:
    model, file = net(), f"{folder}/{rank}"
    if how == "numpy":
        for parameter in model.parameters():
            parameter.data = torch.from_numpy(parameter.detach().numpy().copy())
    elif how == "safetensors":
        save_file(model.state_dict(), file)
        model.load_state_dict(load_file(file), assign=True)
    elif how == "mapped":
        torch.save(model.state_dict(), file)
        model.load_state_dict(torch.load(file, mmap=True), assign=True)
    elif how == "shared":
        model.share_memory()
    else:
        vector_to_parameters(parameters_to_vector(model.parameters()).detach().clone(), model.parameters())
    return train(engine_of(model, 3), rank)


@pytest.mark.parametrize("how", ["numpy", "safetensors", "mapped", "shared", "views of one tensor"])
def test_stage_3_takes_parameters_of_any_memory(two_ranks, how, tmp_path):
    """Memory of files, of other processes and of other parameters cannot be emptied."""
    assert two_ranks.run(from_elsewhere, how, str(tmp_path)) == two_ranks.run(of_plain)


# ---- the mode of a model


def in_both_modes(rank: int) -> list[bool]:
    engine = engine_of(nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5)), 3)
    inputs = inputs_of(0)
    with torch.no_grad():
        repeats = [
            torch.equal(engine.eval()(inputs), engine(inputs)),
            torch.equal(engine.train()(inputs), engine(inputs)),
        ]
    return [*repeats, engine.module.training, engine.train(False).module.training]


def test_an_engine_sets_the_mode_of_its_model(two_ranks):
    assert two_ranks.run(in_both_modes) == [[True, False, True, False]] * 2


# ---- what is changed after octavo.initialize


def after_a_change(rank: int, how: str) -> list[str]:
    model = net()
    if how == "needs a gradient":
        model[0].requires_grad_(False)
    engine = engine_of(model, 1)
    train(engine, rank, 1)
    if how == "dtype":
        model.to(torch.bfloat16).float()
    elif how == "assigned":
        model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
    elif how == "replaced":
        model[2] = nn.Linear(4, 4)
    elif how == "needs a gradient":
        model[0].requires_grad_(True)
    else:
        engine.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    before = [part.values.detach().to_local().clone() for part in engine.parts.values()]
    said = error_of(partial(train, engine, rank, 1))
    after = [part.values.detach().to_local() for part in engine.parts.values()]
    return [said, "" if all(map(torch.equal, before, after)) else "has moved"]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("dtype", "[zero.step] 0.weight has other memory than at octavo.initialize"),
        ("assigned", "[zero.step] 0.weight was added, or now requires a gradient, after octavo.initialize"),
        ("replaced", "[zero.step] 2.weight was added, or now requires a gradient, after octavo.initialize"),
        ("needs a gradient", "[zero.step] 0.weight was added, or now requires a gradient, after octavo.initialize"),
        ("group", "[zero.step] parameters were added to the optimizer after octavo.initialize"),
    ],
)
def test_what_would_not_be_trained_is_refused_by_name(two_ranks, how, words):
    for said, moved in two_ranks.run(after_a_change, how):
        assert said.startswith(f"RuntimeError: {words}")
        assert not moved


# ---- names and buffers of models


def through_a_compiled_wrapper(rank: int, folder: str) -> tuple[list[str], bool]:
    engine = engine_of(torch.compile(net(), backend="eager"), 1, exempt=["0.*"])
    train(engine, rank, 2)
    engine.save_checkpoint(f"{folder}/checkpoint")
    engine.export_safetensors(f"{folder}/model.safetensors")
    other = engine_of(net(), 3)
    other.load_checkpoint(f"{folder}/checkpoint")
    return sorted(load_file(f"{folder}/model.safetensors")), train(engine, rank, 2) == train(other, rank, 2)


def test_names_are_those_of_the_model_inside_of_a_compiled_one(two_ranks, tmp_path):
    for names, goes_on_as_well in two_ranks.run(through_a_compiled_wrapper, str(tmp_path)):
        assert names == sorted(net().state_dict())
        assert goes_on_as_well


class WithStridedBuffers(nn.Module):
    """A model with buffers whose elements are not one after another in memory."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        waves = torch.polar(torch.ones(2, 3), torch.full((2, 3), float(rank)))
        self.register_buffer("cosines", waves.real)
        self.register_buffer("one", waves.imag[:1, 0])
        self.register_buffer("across", torch.full((3, 2), float(rank)).t())


def buffers_of(rank: int, by_rounds: bool) -> list[list[float]]:
    model = WithStridedBuffers(rank)
    optimizer = adamw(model)
    if by_rounds:
        octavo.Outer(model, optimizer)
    else:
        octavo.initialize(model, optimizer, {"zero_stage": 1})
    return [buffer.flatten().tolist() for buffer in model.buffers()]


@pytest.mark.parametrize("by_rounds", [False, True], ids=["engine", "Outer"])
def test_buffers_of_any_strides_become_those_of_rank_0(two_ranks, by_rounds):
    for of_rank in two_ranks.run(buffers_of, by_rounds):
        assert of_rank == [[1.0] * 6, [0.0], [0.0] * 6]


# ---- modules that stage 3 has to know


class Lists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList(nn.Parameter(torch.full((4,), 0.5 + i)) for i in range(2))
        self.named = nn.ParameterDict({"bias": nn.Parameter(torch.ones(4))})

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scales[0] * self.scales[1] + self.named["bias"]


class Position(nn.Module):
    """Gives its caller a view of its parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.linspace(0, 1, 20).reshape(5, 4))

    def forward(self, count: int) -> Tensor:
        return self.table[:count]


class WithPosition(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.position, self.layer = Position(), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.position(len(x))


def of_module(rank: int, what: str, stage: int) -> list[float]:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch has a newer weight_norm
        model = {
            "lists": Lists,
            "view": WithPosition,
            "weight_norm": lambda: nn.Sequential(weight_norm(nn.Linear(4, 4)), nn.Linear(4, 4)),
            "spectral_norm": lambda: nn.Sequential(spectral_norm(nn.Linear(4, 4)), nn.Linear(4, 4)),
        }[what]()
    engine = engine_of(model, stage)
    losses = train(engine, rank)
    with torch.no_grad():
        losses.append(engine(inputs_of(rank)).mean().item())
    return losses


@pytest.mark.parametrize("what", ["lists", "view", "weight_norm", "spectral_norm"])
def test_stage_3_trains_what_stage_1_trains(two_ranks, what):
    assert two_ranks.run(of_module, what, 3) == two_ranks.run(of_module, what, 1)


class Table(nn.Module):
    """Gives its caller its parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.linspace(0, 1, 12).reshape(3, 4))

    def forward(self) -> Tensor:
        return self.table


class WithTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.position, self.layer = Table(), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.position()


def of_table(rank: int, stage: int) -> tuple[list[float], list[int], bool]:
    """Returns losses, the numbers of hooks of the parameter after steps, and whether the engine is gone at last."""
    engine = engine_of(WithTable(), stage)
    table, hooks, losses = engine.module.position.table, [], []
    for _ in range(3):
        losses += train(engine, rank, 1)
        hooks.append(len(table._backward_hooks or ()))
    gone = weakref.ref(engine._gathering)
    del engine
    gc.collect()
    return losses, hooks, gone() is None


def test_a_module_may_give_its_parameter_to_its_caller(two_ranks):
    by_first_stage = two_ranks.run(of_table, 1)
    for (losses, hooks, is_gone), (expected, *_) in zip(two_ranks.run(of_table, 3), by_first_stage, strict=True):
        assert losses == expected
        assert len(set(hooks)) == 1 and is_gone


def refuse_compiled(rank: int, how: str) -> str:
    model = net()
    if how == "wrapped":
        model[0] = torch.compile(model[0], backend="eager")
    else:
        model[0].compile(backend="eager")
    return error_of(lambda: engine_of(model, 3))


@pytest.mark.parametrize("how", ["wrapped", "in place"])
def test_stage_3_refuses_modules_that_are_compiled_already(two_ranks, how):
    for said in two_ranks.run(refuse_compiled, how):
        assert said.startswith("ValueError: [zero.initialize] 0 is compiled already")


def copied(rank: int, stage: int) -> tuple[bool, list[float]]:
    """Makes a copy, as an average of parameters does: it is a model by itself."""
    engine = engine_of(net(), stage)
    losses = train(engine, rank, 2)
    with engine.gathered():
        twin, expected = copy.deepcopy(engine.module), engine(inputs_of(rank))
    same = rank > 0 or torch.equal(twin(inputs_of(rank)), expected)  # only one rank does this
    return same, losses + train(engine, rank, 2)


@pytest.mark.parametrize("stage", [1, 3])
def test_a_copy_of_the_model_is_a_model_by_itself(two_ranks, stage):
    for (same, losses), plain in zip(two_ranks.run(copied, stage), two_ranks.run(of_plain), strict=True):
        assert same and losses == plain


def load_after_initialize(rank: int) -> str:
    model, plain = net(), net()
    of_plain = adamw(plain)
    plain(inputs_of(rank)).sum().backward()
    of_plain.step()
    optimizer = adamw(model)
    engine = octavo.initialize(model, optimizer, {"zero_stage": 1})
    optimizer.load_state_dict(of_plain.state_dict())
    engine.backward(engine(inputs_of(rank)).sum())
    return error_of(engine.step)


def test_the_state_of_a_whole_model_that_is_loaded_too_late_is_refused_by_its_cause(two_ranks):
    for said in two_ranks.run(load_after_initialize):
        assert said.startswith("RuntimeError: [zero.step] AdamW has states of whole parameters")
        assert "before octavo.initialize" in said
