# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that do not fit a model or its optimizer: ZeRO's engine names what differs, and changes nothing."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from zero_runs import adamw, engine_of, error_of, net, resumed, saved_engine, train

import octavo
from octavo.zero import checkpoint


def refused_checkpoint(rank: int, folder: str) -> str:
    model = nn.Sequential(nn.Linear(4, 4))
    engine = octavo.initialize(model, adamw(model), {"zero_stage": 2, "accumulation_steps": 2})
    said = []
    for _ in range(2):
        try:
            engine.load_checkpoint(folder)
        except ValueError as error:
            said.append(str(error))
        engine.backward(model(torch.ones(1, 4)).sum())
    return " ".join(said)


def test_the_checkpoint_of_another_model_is_refused(two_ranks, tmp_path):
    two_ranks.run(resumed, (2, 2), torch.optim.AdamW, str(tmp_path / "one"), True, False)
    for said in two_ranks.run(refused_checkpoint, str(tmp_path / "one")):
        assert "[zero.load_checkpoint] this is the checkpoint of another model: it has" in said
        assert " for frozen.bias, this model nothing" in said  # on all ranks the first of them, by name
        assert "1 of 2 micro-batches of a step have been added up" in said


def load_into_other_shapes(rank: int, folder: str) -> tuple[str, bool]:
    """Loads the parameters of a model into one whose parameters have as many elements. Returns the error, and whether
    nothing has changed."""
    engine_of(nn.Linear(8, 2, bias=False), 2).save_checkpoint(folder)
    other = engine_of(nn.Linear(4, 4, bias=False), 2)
    before = other.module.weight.detach().clone()
    said = error_of(partial(other.load_checkpoint, folder))
    return said, torch.equal(other.module.weight, before)


def test_the_checkpoint_of_a_model_of_other_shapes_is_refused(two_ranks, tmp_path):
    words = "another model: it has (2, 8) as the shape of weight, this model (4, 4); nothing has changed"
    for said, is_unchanged in two_ranks.run(load_into_other_shapes, str(tmp_path / "one")):
        assert said == f"ValueError: [zero.load_checkpoint] this is the checkpoint of {words}"
        assert is_unchanged


def load_without_shapes(rank: int, folder: str) -> tuple[list[float], list[float]]:
    """Returns the losses of an engine, and those of one that loads a checkpoint of before there were shapes in it."""
    engine = engine_of(net(), 2)
    state_of = checkpoint._state_of
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "_state_of", lambda *of: {k: v for k, v in state_of(*of).items() if k != "shapes"})
        engine.save_checkpoint(folder)
    other = engine_of(net(), 3)
    train(other, rank, 1)
    other.load_checkpoint(folder)
    return train(engine, rank, 2), train(other, rank, 2)


def test_a_checkpoint_without_shapes_is_loaded(two_ranks, tmp_path):
    for losses, loaded in two_ranks.run(load_without_shapes, str(tmp_path / "one")):
        assert loaded == losses


def load_with_another_one_frozen(rank: int, folder: str, frozen: tuple[bool, bool]) -> tuple[str, bool]:
    """Saves and loads with 0.bias frozen or not. Returns the error, and whether nothing has changed."""
    engines = []
    for is_frozen in frozen:
        model = net()
        model[0].bias.requires_grad_(not is_frozen)
        engines.append(engine_of(model, 2))
    train(engines[0], rank, 1)
    engines[0].save_checkpoint(folder)
    before = [p.detach().clone() for p in engines[1].module.parameters()]
    said = error_of(partial(engines[1].load_checkpoint, folder))
    return said, all(map(torch.equal, engines[1].module.parameters(), before))


@pytest.mark.parametrize(
    ("frozen", "how"),
    [
        ((False, True), "was trained in the checkpoint and is frozen here"),
        ((True, False), "was frozen in the checkpoint and is trained here"),
    ],
)
def test_a_parameter_that_is_frozen_only_here_or_only_there_is_named(two_ranks, tmp_path, frozen, how):
    for said, is_unchanged in two_ranks.run(load_with_another_one_frozen, str(tmp_path / "one"), frozen):
        assert said.startswith(f"ValueError: [zero.load_checkpoint] 0.bias {how}: ") and is_unchanged
        assert "trains the same parameters as the checkpoint" in said and "export_safetensors()" in said


def load_half_of_the_states(rank: int) -> list[str]:
    model = net()
    engine = octavo.initialize(model, torch.optim.AdamW(model.parameters()), {"zero_stage": 1})
    train(engine, rank, 1)
    own, options = engine.optimizer_state(), engine.optimizer_options()
    all_ranks: list[Any] = [None, None]
    torch.distributed.all_gather_object(all_ranks, own)
    engine.load_optimizer_state(all_ranks, options)
    assert all(
        torch.equal(own[name][key], now) for name, of in engine.optimizer_state().items() for key, now in of.items()
    )
    strange = [{**one, "9.weight": one["0.weight"]} for one in all_ranks]
    return [error_of(partial(engine.load_optimizer_state, states, options)) for states in (all_ranks[:1], strange)]


def test_states_that_are_not_those_of_all_ranks_are_refused(two_ranks):
    for missing, strange in two_ranks.run(load_half_of_the_states):
        assert "the states of 0.weight have 8 of its 16 elements: give the states of all ranks" in missing
        assert "there are states of 9.weight, which is not trained here" in strange


def load_into_another_dtype(rank: int, folder: str) -> str:
    engine_of(net(), 1).save_checkpoint(folder)
    return error_of(lambda: engine_of(net().bfloat16(), 1).load_checkpoint(folder))


def test_a_checkpoint_of_another_dtype_is_refused(two_ranks, tmp_path):
    for said in two_ranks.run(load_into_another_dtype, str(tmp_path / "one")):
        assert "it has float32 of (4,) for 0.bias, this model bfloat16 of (4,)" in said


def load_into_another_optimizer(rank: int, folder: str) -> list[str]:
    """Returns the error of a load, and that of a step after it."""
    saved_engine(rank, folder)
    other = engine_of(net(), 1)
    train(other, rank, 1)
    before = [p.detach().clone() for p in other.module.parameters()]
    said = error_of(lambda: other.load_checkpoint(folder))
    assert all(map(torch.equal, before, other.module.parameters()))
    return [said, error_of(partial(train, other, rank, 1))]


def test_the_checkpoint_of_another_optimizer_changes_nothing(two_ranks, tmp_path):
    for said, after in two_ranks.run(load_into_another_optimizer, str(tmp_path / "one")):
        assert "this is the state of another optimizer than SGD: its options have amsgrad, " in said
        assert not after
