# SPDX-License-Identifier: Apache-2.0
"""Checkpoints and exports of ZeRO's engine: to the bit, and on other numbers of ranks."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from safetensors.torch import load_file, load_model
from torch import Tensor, nn
from zero_runs import Engine, TiedAndFrozen, adamw, engine_of, error_of, net, paged, resumed, step_once, train

import octavo


@pytest.mark.parametrize("make", [torch.optim.AdamW, paged], ids=["torch's AdamW", "paged in 8 bits"])
@pytest.mark.parametrize("stages", [(1, 1), (2, 2), (3, 3), (2, 3)], ids=str)
def test_a_resumed_run_is_the_run_to_the_bit(two_ranks, stages, make, tmp_path):
    whole = two_ranks.run(resumed, stages[:1] * 2, make, str(tmp_path / "one"), False, False)
    first = two_ranks.run(resumed, stages, make, str(tmp_path / "one"), True, False)
    rest = two_ranks.run(resumed, stages, make, str(tmp_path / "one"), False, True)
    assert [a + b for a, b in zip(first, rest, strict=True)] == whole


def gone_on_otherwise(rank: int, compile: tuple[Any, Any], stages: tuple[int, int], folder: str) -> list[list[float]]:
    """Returns the losses of the steps after a checkpoint, of the engine that has saved it and of one that loads it."""
    losses = []
    for number in range(2):
        torch._dynamo.reset()
        model = TiedAndFrozen()
        optimizer = torch.optim.AdamW(model.parameters(), lr=(1e-3, 0.5)[number], eps=1e-4, weight_decay=0.1)
        engine = octavo.initialize(model, optimizer, {"zero_stage": stages[number], "compile": compile[number]})
        if number == 0:
            for batch in range(5):
                step_once(engine, rank, batch)
            engine.save_checkpoint(folder)
        else:
            engine.load_checkpoint(folder)
        losses.append([step_once(engine, rank, batch) for batch in range(5, 10)])
    return losses


WITH_GRAPHS = {"backend": "aot_eager", "memory_mib": 2.0**20}  # from the fourth step on parameters stay whole


@pytest.mark.parametrize(
    ("compile", "stages"),
    [((WITH_GRAPHS, False), (3, 3)), ((WITH_GRAPHS, False), (3, 1)), ((False, WITH_GRAPHS), (1, 3))],
    ids=["from compiled", "from compiled to stage 1", "to compiled"],
)
def test_compiled_and_eager_engines_load_each_others_checkpoints(two_ranks, tmp_path, compile, stages):
    for whole, loaded in two_ranks.run(gone_on_otherwise, compile, stages, str(tmp_path / "one")):
        assert loaded == pytest.approx(whole, rel=1e-4)


def loads_its_first_state(rank: int, stage: int, folder: str) -> list[list[float]]:
    """Returns the losses of a run whose parameters are sent by a codec, and of one from its state before the first
    step."""
    runs = []
    for loads in (False, True):
        model = TiedAndFrozen()
        engine = octavo.initialize(model, adamw(model), {"zero_stage": stage, "gather": "int8"})
        if loads:
            engine.load_checkpoint(folder)
        else:
            engine.save_checkpoint(folder)
        runs.append([step_once(engine, rank, batch) for batch in range(3)])
    return runs


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_state_of_before_the_first_step_is_that_of_a_new_engine(two_ranks, tmp_path, stage):
    for whole, loaded in two_ranks.run(loads_its_first_state, stage, str(tmp_path / "one")):
        assert loaded == whole


def made_room_for(rank: int, folder: str) -> list[str]:
    from octavo.zero import checkpoint

    made, room_for = [], checkpoint._room_for
    engine = octavo.initialize(model := TiedAndFrozen(), adamw(model), {"zero_stage": 2, "plan": "int4+ef"})
    step_once(engine, rank, 0)
    engine.save_checkpoint(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "_room_for", lambda parts, key, what: made.append(key) or room_for(parts, key, what))
        engine.load_checkpoint(folder)
    return made


def test_as_many_ranks_load_what_each_has_to_send_alone(two_ranks, tmp_path):
    for rank, made in enumerate(two_ranks.run(made_room_for, str(tmp_path / "one"))):
        assert any(key.startswith(f"residuals/{rank}/") for key in made)
        assert not any(key.startswith(f"residuals/{1 - rank}/") for key in made)


@pytest.mark.parametrize("make", [torch.optim.AdamW, paged], ids=["torch's AdamW", "paged in 8 bits"])
def test_another_number_of_ranks_goes_on(two_ranks, three_ranks, make, tmp_path):
    two_ranks.run(resumed, (2, 3), make, str(tmp_path / "one"), True, False)
    on_three = three_ranks.run(resumed, (2, 3), make, str(tmp_path / "one"), False, True)
    on_two = two_ranks.run(resumed, (2, 3), make, str(tmp_path / "one"), False, True)
    for step in range(6):  # the rank has the same batches, but the average over three ranks includes others
        assert on_three[0][step] == pytest.approx(on_two[0][step], rel=0.15)
    assert on_three[0][0] == pytest.approx(on_two[0][0], rel=1e-4)


def exported(rank: int, path: str, config: dict[str, Any]) -> dict[str, Tensor]:
    """Returns the parameters of a trained model as their owners have them; they are also exported to a file."""
    model = TiedAndFrozen()
    engine = octavo.initialize(model, adamw(model), config)
    for batch in range(3):
        step_once(engine, rank, batch)
    engine.export_safetensors(path)
    return {name: whole.clone() for name, whole in engine.whole_parameters()}


@pytest.mark.parametrize("gather", [None, "int8"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_model_is_exported_to_one_file(two_ranks, tmp_path, stage, gather):
    path = tmp_path / "model.safetensors"
    ours, theirs = two_ranks.run(exported, str(path), {"zero_stage": stage, "gather": gather})
    assert ours.keys() == theirs.keys() and all(ours[name].equal(theirs[name]) for name in ours)
    untrained = TiedAndFrozen().state_dict()
    assert load_file(path).keys() == untrained.keys() - {"head.weight"}  # it is the embedding's weight
    model = TiedAndFrozen()
    load_model(model, path)
    for name, tensor in model.state_dict().items():
        if name in ours:
            assert tensor.equal(ours[name]) and not tensor.equal(untrained[name])
    assert model.frozen.weight.equal(TiedAndFrozen().frozen.weight)
    assert model.head.weight is model.embedding.weight


def save_beside(rank: int, folder: str) -> None:
    engine = octavo.initialize(model := nn.Linear(4, 4), adamw(model), {"zero_stage": 2})
    for _ in range(2):
        engine.save_checkpoint(folder)


def test_folders_of_other_names_are_left_alone(two_ranks, tmp_path):
    (tmp_path / "saved-best").mkdir()
    (tmp_path / "saved-7").mkdir()
    two_ranks.run(save_beside, str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "saved-000002", "saved-7", "saved-best"]


class Counting(torch.optim.SGD):
    """An optimizer whose state is a number, not a tensor, as with those of bitsandbytes."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["step"] = self.state[parameter].get("step", 0) + 1
        return super().step(closure)


def counted(rank: int, folder: str) -> list[int]:
    engine = octavo.initialize(model := nn.Linear(4, 4), Counting(model.parameters(), lr=0.1), {"zero_stage": 2})
    engine.backward(engine(torch.ones(1, 4)).sum())
    engine.step()
    engine.save_checkpoint(folder)
    engine = octavo.initialize(model := nn.Linear(4, 4), Counting(model.parameters(), lr=0.1), {"zero_stage": 2})
    engine.load_checkpoint(folder)
    return [state["step"] for state in engine.optimizer.state.values()]


def test_states_that_are_numbers_are_loaded_too(two_ranks, tmp_path):
    assert two_ranks.run(counted, str(tmp_path)) == [[1, 1], [1, 1]]


class Growing(nn.Module):
    """A model with a mask that is not part of `state_dict`, and statistics that are."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("mask", torch.ones(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if len(self.mask) < len(x):
            self.mask = torch.ones(len(x))
        return self.norm(self.layer(x)) * self.mask[: len(x), None]


def with_buffers(rank: int, folder: str) -> tuple[list[list[float]], list[list[float]]]:
    """Returns the statistics at a checkpoint, after it was loaded, and after more training of both; and the losses of
    both."""
    torch.manual_seed(0)
    engine = engine_of(Growing(), 1)
    train(engine, rank, 2)
    engine.save_checkpoint(folder)
    statistics, losses = [engine.module.norm.running_mean.tolist()], [train(engine, rank, 2)]
    resumed = engine_of(Growing(), 1)
    resumed.load_checkpoint(folder)
    statistics.append(resumed.module.norm.running_mean.tolist())
    losses.append(train(resumed, rank, 2))
    statistics += [one.module.norm.running_mean.tolist() for one in (engine, resumed)]
    return statistics, losses


def test_buffers_go_on_from_a_checkpoint(two_ranks, tmp_path):
    (first, losses), (second, other_losses) = two_ranks.run(with_buffers, str(tmp_path / "one"))
    assert first[:2] == second[:2] and first[0] == first[1], "those of rank 0 are all ranks'"
    assert first[2] == first[3] and second[2] == second[3]
    assert losses[0] == losses[1] and other_losses[0] == other_losses[1]


def with_options(rank: int, folder: str) -> list[Any]:
    def make() -> Engine:
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-2))
        return octavo.initialize(model, optimizer, {"zero_stage": 2})

    engine, other = make(), make()
    train(engine, rank, 1)
    engine.optimizer.param_groups[0]["weight_decay"] = numpy.float32(0.5)
    engine.optimizer.param_groups[0]["lr"].fill_(0.25)
    engine.save_checkpoint(folder)
    other.load_checkpoint(folder)
    options = other.optimizer.param_groups[0]
    engine.optimizer.param_groups[0]["lr"] = {0.25}
    return [
        options["lr"].item(),
        options["weight_decay"],
        options["betas"],
        error_of(lambda: engine.save_checkpoint(folder)),
    ]


def test_options_of_any_type_of_number_are_saved(two_ranks, tmp_path):
    for lr, decay, betas, said in two_ranks.run(with_options, str(tmp_path / "one")):
        assert (lr, decay, betas) == (0.25, 0.5, (0.9, 0.999))
        assert said.startswith("ValueError: [zero.save_checkpoint] the optimizer's option lr is {0.25}: checkpoints")


def save_to_own_folder(rank: int, folder: str) -> None:
    """Each rank's folder is one of its own, as on hosts that share no disk."""
    engine = octavo.initialize(model := TiedAndFrozen(), adamw(model), {"zero_stage": 2})
    with pytest.raises(OSError, match=r"rank 1 cannot write to .*: is .* the same folder on all hosts"):
        engine.save_checkpoint(f"{folder}/{rank}")


def test_hosts_without_a_shared_folder_are_told_so(two_ranks, tmp_path):
    two_ranks.run(save_to_own_folder, str(tmp_path))
