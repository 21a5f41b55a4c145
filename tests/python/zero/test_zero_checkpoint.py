# SPDX-License-Identifier: Apache-2.0
"""Checkpoints and exports of ZeRO's engine: to the bit, on other numbers of ranks, and where they fail."""

from __future__ import annotations

import resource
import signal
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors.torch import load_file, load_model
from torch import Tensor, nn
from zero_runs import Engine, Odd, adamw, engine_of, inputs_of, net, paged, said_by, step_once, train

import octavo
from octavo import durable_files
from octavo.zero.all_or_none import require_none_failed


def resumed(rank: int, stages: tuple[int, int], make: Any, folder: str, save: bool, load: bool) -> list[float]:
    """Returns the losses of 12 steps; of only the first 6, which are then saved; or of only the last 6, after a
    load."""
    plan = {"plan": "int4+ef"} if make is paged else {}
    model = Odd()
    engine = octavo.initialize(model, make(model.parameters()), {"zero_stage": stages[load]} | plan)
    if load:
        engine.load_checkpoint(folder)
    losses = []
    for batch in range(6 if load else 0, 6 if save else 12):
        losses.append(step_once(engine, rank, batch))
    if save:
        engine.save_checkpoint(folder)
    return losses


@pytest.mark.parametrize("make", [torch.optim.AdamW, paged], ids=["torch's AdamW", "paged in 8 bits"])
@pytest.mark.parametrize("stages", [(1, 1), (2, 2), (3, 3), (2, 3)], ids=str)
def test_a_resumed_run_is_the_run_to_the_bit(two_ranks, stages, make, tmp_path):
    whole = two_ranks.run(resumed, stages[:1] * 2, make, str(tmp_path / "one"), False, False)
    first = two_ranks.run(resumed, stages, make, str(tmp_path / "one"), True, False)
    rest = two_ranks.run(resumed, stages, make, str(tmp_path / "one"), False, True)
    assert [a + b for a, b in zip(first, rest, strict=True)] == whole


def loads_its_first_state(rank: int, stage: int, folder: str) -> list[list[float]]:
    """Returns the losses of a run whose parameters are sent by a codec, and of one from its state before the first
    step."""
    runs = []
    for loads in (False, True):
        model = Odd()
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
    engine = octavo.initialize(model := Odd(), adamw(model), {"zero_stage": 2, "plan": "int4+ef"})
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


class Stop(BaseException):
    """Simulates SIGKILL: no code catches it."""


def killed_in_a_save(rank: int, folder: str) -> tuple[list[float], list[float]]:
    """Returns the losses of an engine that resumes from a save although a second one was interrupted, and those
    expected."""
    engine = octavo.initialize(model := Odd(), adamw(model), {"zero_stage": 3})
    step_once(engine, rank, 0)
    engine.save_checkpoint(folder)
    expected = [step_once(engine, rank, batch) for batch in (1, 2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(durable_files, "point_link", stop)
        if rank == 0:
            with pytest.raises(Stop):
                engine.save_checkpoint(folder)
            for _ in range(2):  # the calls that the interrupted save did not reach
                require_none_failed(None, "", "", torch.distributed.group.WORLD)
        else:
            engine.save_checkpoint(folder)
    other = octavo.initialize(model := Odd(), adamw(model), {"zero_stage": 3})
    other.load_checkpoint(folder)
    got = [step_once(other, rank, batch) for batch in (1, 2)]
    other.save_checkpoint(folder)
    return got, expected


def stop(*_: Any) -> None:
    raise Stop


def test_a_process_killed_in_a_save_leaves_the_checkpoint_before(two_ranks, tmp_path):
    for got, expected in two_ranks.run(killed_in_a_save, str(tmp_path / "one")):
        assert got == expected
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == ["latest", "saved-000003"]


def exported(rank: int, path: str, config: dict[str, Any]) -> dict[str, Tensor]:
    """Returns the parameters of a trained model as their owners have them; they are also exported to a file."""
    model = Odd()
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
    untrained = Odd().state_dict()
    assert load_file(path).keys() == untrained.keys() - {"head.weight"}  # it is the embedding's weight
    model = Odd()
    load_model(model, path)
    for name, tensor in model.state_dict().items():
        if name in ours:
            assert tensor.equal(ours[name]) and not tensor.equal(untrained[name])
    assert model.frozen.weight.equal(Odd().frozen.weight)
    assert model.head.weight is model.embedding.weight


def export_nowhere(rank: int, folder: str) -> str:
    engine = octavo.initialize(model := Odd(), adamw(model), {"zero_stage": 3})
    try:
        engine.export_safetensors(Path(folder) / "none" / "model.safetensors")
    except OSError as error:
        return str(error)
    return "nothing"


def test_a_file_that_cannot_be_written_is_an_error_on_every_rank(two_ranks, tmp_path):
    for said in two_ranks.run(export_nowhere, str(tmp_path)):
        assert said.startswith("[zero.export_safetensors] rank 0 cannot write ")
        assert said.endswith("No such file or directory")


def export_without_room(rank: int, path: str) -> str:
    """Exports to a file that a limit of the process lets grow to 4 KiB."""
    engine = octavo.initialize(model := Odd(), adamw(model), {"zero_stage": 3})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        engine.export_safetensors(path)
    except OSError as error:
        return str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    return "nothing"


def test_an_export_that_fails_halfway_leaves_the_file_that_was_there(two_ranks, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_text("the export before")
    for said in two_ranks.run(export_without_room, str(path)):
        assert said.startswith(f"[zero.export_safetensors] rank 0 cannot write {path}")
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == "the export before"


def between_backward_and_step(rank: int, folder: str) -> list[str]:
    model = net()
    engine = octavo.initialize(model, adamw(model), {"zero_stage": 2})
    engine.save_checkpoint(folder)
    engine.backward(engine(torch.ones(2, 4)).square().mean())
    what = (
        partial(engine.save_checkpoint, folder),
        partial(engine.load_checkpoint, folder),
        partial(engine.export_safetensors, f"{folder}/model.safetensors"),
    )
    refusals = [said_by(attempt) for attempt in what]
    engine.drop_gradients()
    return [*refusals, said_by(what[1])]


def test_the_gradients_of_a_step_are_used_or_dropped_before_a_checkpoint(two_ranks, tmp_path):
    """After a load they would be those of other parameters."""
    for *refusals, after in two_ranks.run(between_backward_and_step, str(tmp_path / "saved")):
        for said, name in zip(refusals, ("save_checkpoint", "load_checkpoint", "export_safetensors"), strict=True):
            assert said.startswith(f"ValueError: [zero.{name}] backward() has made the gradients of a step")
        assert after == ""


def export_of_complex(rank: int, folder: str) -> str:
    model = nn.Linear(4, 4)
    model.register_buffer("rotations", torch.ones(3, dtype=torch.complex64))
    engine = octavo.initialize(model, adamw(model), {"zero_stage": 3})
    try:
        engine.export_safetensors(f"{folder}/model.safetensors")
    except ValueError as error:
        return str(error)
    return "nothing"


def test_a_dtype_that_the_file_cannot_hold_is_an_error_on_every_rank(two_ranks, tmp_path):
    for said in two_ranks.run(export_of_complex, str(tmp_path)):
        assert "[zero.export_safetensors] a safetensors file cannot hold rotations, which is torch.complex64" in said


def save_nowhere(rank: int, folder: str) -> str:
    engine = octavo.initialize(model := nn.Linear(4, 4), adamw(model), {"zero_stage": 2})
    try:
        engine.save_checkpoint(Path(folder) / "file" / "below")
    except OSError as error:
        return str(error)
    return "nothing"


def test_a_folder_that_cannot_be_made_is_an_error_on_every_rank(two_ranks, tmp_path):
    (tmp_path / "file").touch()
    for said in two_ranks.run(save_nowhere, str(tmp_path)):
        assert said.startswith("[zero.save_checkpoint] rank 0 cannot write to ")


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
        said_by(lambda: engine.save_checkpoint(folder)),
    ]


def test_options_of_any_type_of_number_are_saved(two_ranks, tmp_path):
    for lr, decay, betas, said in two_ranks.run(with_options, str(tmp_path / "one")):
        assert (lr, decay, betas) == (0.25, 0.5, (0.9, 0.999))
        assert said.startswith("ValueError: [zero.save_checkpoint] the optimizer's option lr is {0.25}, which is no")


def load_what_does_not_fit(rank: int, folder: str, how: str) -> list[str]:
    model = net()
    engine = octavo.initialize(model, torch.optim.AdamW(model.parameters()), {"zero_stage": 1})
    train(engine, rank, 1)
    engine.save_checkpoint(folder)
    torch.distributed.barrier()
    if how == "another optimizer":
        other = engine_of(net(), 1)
        train(other, rank, 1)
        before = [p.detach().clone() for p in other.module.parameters()]
        said = said_by(lambda: other.load_checkpoint(folder))
        assert all(map(torch.equal, before, other.module.parameters()))
        return [said, said_by(partial(train, other, rank, 1))]
    if rank == 0:
        for file in (Path(folder) / "latest").glob("*.distcp"):
            file.write_bytes(file.read_bytes()[:-200])
        (Path(folder) / "latest" / "sha256.json").unlink()  # by which it would be refused before anything changes
    torch.distributed.barrier()
    said = said_by(lambda: engine.load_checkpoint(folder))
    return [said, said_by(lambda: engine.backward(engine(inputs_of(rank)).mean()))]


def test_a_checkpoint_that_breaks_off_ends_the_engine(two_ranks, tmp_path):
    for of_load, said in two_ranks.run(load_what_does_not_fit, str(tmp_path / "one"), "cut"):
        assert f" cannot read the checkpoint in {tmp_path / 'one'}: " in of_load
        assert of_load.startswith("RuntimeError: [zero.load_checkpoint] rank ")
        assert said.startswith("RuntimeError: [zero.backward] this engine has ended with an error before")


class Failing(torch.optim.SGD):
    """An optimizer one rank of which runs out of memory when half of a step is done."""

    failing_rank = -1

    def step(self, closure=None):
        if torch.distributed.get_rank() == self.failing_rank:
            self.param_groups[0]["params"][0].data.mul_(2)
            raise torch.OutOfMemoryError("no memory for the step")
        return super().step(closure)

    def load_state_dict(self, state_dict):
        if torch.distributed.get_rank() == self.failing_rank:
            raise torch.OutOfMemoryError("no memory for the states")
        super().load_state_dict(state_dict)


def failed_half_way(rank: int, folder: str, what: str) -> list[str]:
    """Returns the error of a step or of a load that fails on rank 1, and of a save after it."""
    model = net()
    optimizer = Failing(model.parameters(), lr=0.3, momentum=0.9)
    engine = octavo.initialize(model, optimizer, {"zero_stage": 1, "timeout_s": 5})
    train(engine, rank, 1)
    engine.save_checkpoint(folder)
    optimizer.failing_rank = 1
    said = []
    attempts = {"step": lambda: train(engine, rank, 1), "load": lambda: engine.load_checkpoint(folder)}
    for attempt in (attempts[what], lambda: engine.save_checkpoint(folder)):
        try:
            attempt()
        except (RuntimeError, TimeoutError) as error:
            said.append(str(error))
    return said


@pytest.mark.parametrize("what", ["step", "load"])
def test_half_a_step_or_load_is_never_saved(two_ranks, tmp_path, what):
    folder = tmp_path / "one"
    of_0, of_1 = two_ranks.run(failed_half_way, str(folder), what)
    if what == "load":
        assert all("rank 1 cannot read the checkpoint" in said[0] and "no memory" in said[0] for said in (of_0, of_1))
    else:
        assert of_1[0] == "no memory for the step"
    assert all("this engine has ended with an error before" in said[1] for said in (of_0, of_1))
    assert (folder / "latest").resolve().name == "saved-000001"


class Scaling(torch.optim.SGD):
    """An optimizer with a state that has another shape than its parameter."""

    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["scale"] = torch.ones(1)
        return super().step(closure)


def save_a_state_of_another_shape(rank: int, folder: str) -> str:
    model = net()
    engine = octavo.initialize(model, Scaling(model.parameters(), lr=0.1), {"zero_stage": 1})
    train(engine, rank, 1)
    return said_by(lambda: engine.save_checkpoint(folder))


def test_a_state_that_no_load_could_share_out_is_not_saved(two_ranks, tmp_path):
    for said in two_ranks.run(save_a_state_of_another_shape, str(tmp_path / "one")):
        assert said.startswith("ValueError: [zero.save_checkpoint] the optimizer keeps scale of 0.weight as (1,)"), said


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
    return [said_by(partial(engine.load_optimizer_state, states, options)) for states in (all_ranks[:1], strange)]


def test_states_that_are_not_those_of_all_ranks_are_refused(two_ranks):
    for missing, strange in two_ranks.run(load_half_of_the_states):
        assert "the states of 0.weight have 8 of its 16 elements: give the states of all ranks" in missing
        assert "there are states of 9.weight, which is not trained here" in strange


def save_twice_where_the_first_cannot_be_removed(rank: int, folder: str) -> list[str]:
    engine = engine_of(net(), 1)
    engine.save_checkpoint(folder)
    if rank == 0:
        (Path(folder) / "saved-000001").rename(f"{folder}-elsewhere")
        (Path(folder) / "saved-000001").symlink_to(f"{folder}-elsewhere")  # as on a disk that was full
        (Path(folder) / "saved-000000").write_text("a file")
    torch.distributed.barrier()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        engine.save_checkpoint(folder)
    return [str(one.message) for one in told if "[zero.save_checkpoint]" in str(one.message)]


def test_an_older_checkpoint_that_cannot_be_removed_is_a_warning(two_ranks, tmp_path):
    of_0, of_1 = two_ranks.run(save_twice_where_the_first_cannot_be_removed, str(tmp_path / "one"))
    assert len(of_0) == 1 and "saved-000000 is no longer needed and cannot be removed" in of_0[0] and not of_1
    assert sorted(path.name for path in (tmp_path / "one").glob("saved-*")) == ["saved-000000", "saved-000002"]
    assert (tmp_path / "one" / "latest").resolve().name == "saved-000002"


def load_into_another_dtype(rank: int, folder: str) -> str:
    engine_of(net(), 1).save_checkpoint(folder)
    return said_by(lambda: engine_of(net().bfloat16(), 1).load_checkpoint(folder))


def test_a_checkpoint_of_another_dtype_is_refused(two_ranks, tmp_path):
    for said in two_ranks.run(load_into_another_dtype, str(tmp_path / "one")):
        assert "it has float32 of (4,) for 0.bias, this model bfloat16 of (4,)" in said


def load_where_one_rank_has_none(rank: int, folder: str) -> list[str]:
    engine = engine_of(net(), 1)
    said = []
    for directory in (folder, f"{folder}-of-rank-{rank}"):
        try:
            engine.load_checkpoint(directory)
        except OSError as error:
            said.append(f"{type(error).__name__}: {error}")
        if not said:
            raise AssertionError("expected an error")
        engine.save_checkpoint(folder)
        if rank == 0 and len(said) == 1:
            Path(f"{folder}-of-rank-0").symlink_to(folder)
        torch.distributed.barrier()
    return said


def test_a_rank_that_has_no_checkpoint_is_named_on_all(two_ranks, tmp_path):
    folder = tmp_path / "one"
    for of_all, of_one in two_ranks.run(load_where_one_rank_has_none, str(folder)):
        assert of_all.startswith(f"FileNotFoundError: [zero.load_checkpoint] there is no checkpoint in {folder}: ")
        assert of_one.startswith("OSError: [zero.load_checkpoint] rank 1 cannot read the checkpoint in ")
        assert "rank 0" not in of_one and f"there is no checkpoint in {folder}-of-rank-1" in of_one


def load_what_has_changed(rank: int, folder: str, name: str) -> tuple[str, bool]:
    """Changes a byte of a checkpoint's file. Returns what a load says, and whether the model has changed."""
    engine = octavo.initialize(model := Odd(), adamw(model), {"zero_stage": 2})
    step_once(engine, rank, 0)
    engine.save_checkpoint(folder)
    torch.distributed.barrier()
    if rank == 0:
        path = Path(folder, "latest", name)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    torch.distributed.barrier()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    said = said_by(lambda: engine.load_checkpoint(folder))
    return said, any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("name", [".metadata", "__1_0.distcp"])
def test_a_checkpoint_whose_bytes_have_changed_is_refused(two_ranks, tmp_path, name):
    for said, has_changed in two_ranks.run(load_what_has_changed, str(tmp_path / "one"), name):
        assert said.startswith("RuntimeError: [zero.load_checkpoint] rank 0 cannot read the checkpoint in ")
        assert f"{name} is damaged: its bytes are not those that were written" in said
        assert not has_changed


def test_the_checkpoint_of_another_optimizer_changes_nothing(two_ranks, tmp_path):
    for said, after in two_ranks.run(load_what_does_not_fit, str(tmp_path / "one"), "another optimizer"):
        assert "this is the state of another optimizer than SGD: its options have amsgrad, " in said
        assert not after
