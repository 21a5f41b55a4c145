# SPDX-License-Identifier: Apache-2.0
"""Checkpoints and exports of ZeRO's engine that fail or are refused, on all ranks alike and without a loss."""

from __future__ import annotations

import errno
import re
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from test_zero_checkpoint import resumed
from torch import Tensor, nn
from zero_runs import Odd, adamw, engine_of, error_of, inputs_of, net, step_once, train

import octavo
from octavo import durable_files
from octavo.zero import checkpoint, export
from octavo.zero.all_or_none import require_none_failed


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
                require_none_failed(None, "", "", engine._peers)
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
    """Exports to a disk that is full after the first tensor."""
    engine = octavo.initialize(model := Odd(), adamw(model), {"zero_stage": 3})
    bytes_of, written = export._bytes_of, []

    def some_bytes_of(tensor: Tensor) -> bytearray:
        written.append(tensor)
        if len(written) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return bytes_of(tensor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "_bytes_of", some_bytes_of)
        return error_of(lambda: engine.export_safetensors(path))


def test_an_export_that_fails_halfway_leaves_the_file_that_was_there(two_ranks, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_text("the export before")
    for said in two_ranks.run(export_without_room, str(path)):
        assert said.startswith(f"OSError: [zero.export_safetensors] rank 0 cannot write {path}")
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == "the export before"


def export_without_memory(rank: int, path: str, poor: int) -> str:
    """Exports where one rank has no memory for the second tensor."""
    engine = octavo.initialize(model := Odd(), adamw(model), {"zero_stage": 3, "timeout_s": 10})
    whole, gathered = engine.whole, []

    def whole_or_not(tensor: Tensor) -> Tensor:
        gathered.append(whole(tensor))
        if rank == poor and len(gathered) == 2:
            raise torch.OutOfMemoryError("no memory for a whole tensor")
        return gathered[-1]

    engine.whole = whole_or_not
    return f"{error_of(lambda: engine.export_safetensors(path))}, then {error_of(partial(step_once, engine, rank, 0))}"


@pytest.mark.parametrize("poor", [0, 1])
def test_a_rank_without_memory_for_a_tensor_of_an_export_is_named_at_once(two_ranks, tmp_path, poor):
    path = tmp_path / "model.safetensors"
    words = f"rank {poor} cannot write {path}: OutOfMemoryError: no memory for a whole tensor"
    for said in two_ranks.run(export_without_memory, str(path), poor):
        assert said == f"RuntimeError: [zero.export_safetensors] {words}, then "


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
    refusals = [error_of(attempt) for attempt in what]
    engine.drop_gradients()
    return [*refusals, error_of(what[1])]


def test_the_gradients_of_a_step_are_used_or_dropped_before_a_checkpoint(two_ranks, tmp_path):
    """After a load they would be those of other parameters."""
    for *refusals, after in two_ranks.run(between_backward_and_step, str(tmp_path / "saved")):
        for said, name in zip(refusals, ("save_checkpoint", "load_checkpoint", "export_safetensors"), strict=True):
            assert said.startswith(f"ValueError: [zero.{name}] backward() has computed the gradients of a step")
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
        said = error_of(lambda: other.load_checkpoint(folder))
        assert all(map(torch.equal, before, other.module.parameters()))
        return [said, error_of(partial(train, other, rank, 1))]
    if rank == 0:
        for file in (Path(folder) / "latest").glob("*.distcp"):
            file.write_bytes(file.read_bytes()[:-200])
        (Path(folder) / "latest" / "sha256.json").unlink()  # by which it would be refused before anything changes
    torch.distributed.barrier()
    said = error_of(lambda: engine.load_checkpoint(folder))
    return [said, error_of(lambda: engine.backward(engine(inputs_of(rank)).mean()))]


def test_a_checkpoint_that_breaks_off_ends_the_engine(two_ranks, tmp_path):
    for of_load, said in two_ranks.run(load_what_does_not_fit, str(tmp_path / "one"), "cut"):
        assert f" cannot read the checkpoint in {tmp_path / 'one'}: " in of_load
        assert of_load.startswith("RuntimeError: [zero.load_checkpoint] rank ")
        assert said.startswith("RuntimeError: [zero.backward] an earlier error stopped this engine")


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
    assert all("an earlier error stopped this engine" in said[1] for said in (of_0, of_1))
    assert (folder / "latest").resolve().name == "saved-000001"


def load_without_the_last_gather(rank: int, folder: str) -> list[str]:
    engine = engine_of(net(), 1)
    engine.save_checkpoint(folder)

    def fail() -> None:
        raise TimeoutError("no answer")

    engine.take_own_parts = fail
    attempts = (lambda: engine.load_checkpoint(folder), lambda: engine.save_checkpoint(folder))
    return [error_of(attempt) for attempt in attempts]


def test_a_load_whose_parameters_do_not_reach_all_ranks_ends_the_engine(two_ranks, tmp_path):
    for of_load, of_save in two_ranks.run(load_without_the_last_gather, str(tmp_path / "one")):
        assert of_load == "TimeoutError: no answer"
        assert "[zero.save_checkpoint] an earlier error stopped this engine" in of_save


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
    return error_of(lambda: engine.save_checkpoint(folder))


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
    return [error_of(partial(engine.load_optimizer_state, states, options)) for states in (all_ranks[:1], strange)]


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
    ours = [one for one in told if "[zero.save_checkpoint]" in str(one.message)]
    assert all(one.filename == __file__ for one in ours)  # where the caller can look
    return [str(one.message) for one in ours]


def test_an_older_checkpoint_that_cannot_be_removed_is_a_warning(two_ranks, tmp_path):
    of_0, of_1 = two_ranks.run(save_twice_where_the_first_cannot_be_removed, str(tmp_path / "one"))
    assert len(of_0) == 1 and "saved-000000 is no longer needed and cannot be removed" in of_0[0] and not of_1
    assert sorted(path.name for path in (tmp_path / "one").glob("saved-*")) == ["saved-000000", "saved-000002"]
    assert (tmp_path / "one" / "latest").resolve().name == "saved-000002"


def load_into_another_dtype(rank: int, folder: str) -> str:
    engine_of(net(), 1).save_checkpoint(folder)
    return error_of(lambda: engine_of(net().bfloat16(), 1).load_checkpoint(folder))


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
    said = error_of(lambda: engine.load_checkpoint(folder))
    return said, any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("name", [".metadata", "__1_0.distcp"])
def test_a_checkpoint_whose_bytes_have_changed_is_refused(two_ranks, tmp_path, name):
    for said, has_changed in two_ranks.run(load_what_has_changed, str(tmp_path / "one"), name):
        assert said.startswith("ValueError: [zero.load_checkpoint] rank 0 cannot read the checkpoint in ")
        assert f"{name} is damaged: its bytes are not those that were written" in said
        assert not has_changed


def test_the_checkpoint_of_another_optimizer_changes_nothing(two_ranks, tmp_path):
    for said, after in two_ranks.run(load_what_does_not_fit, str(tmp_path / "one"), "another optimizer"):
        assert "this is the state of another optimizer than SGD: its options have amsgrad, " in said
        assert not after


def load_damaged_digests(rank: int, folder: str, how: str) -> tuple[str, list[str]]:
    engine = engine_of(net(), 1)
    train(engine, rank, 1)
    engine.save_checkpoint(folder)
    torch.distributed.barrier()
    digests = Path(folder) / "latest" / "sha256.json"
    if rank == 0:
        if how == "a file":
            next(digests.parent.glob("*.distcp")).unlink()
        elif how == "missing":
            digests.unlink()
        else:
            digests.write_text("{}" if how == "empty" else digests.read_text()[:50])
    torch.distributed.barrier()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        error = error_of(lambda: engine.load_checkpoint(folder))
    return error, [str(one.message) for one in said if "[zero." in str(one.message)]


@pytest.mark.parametrize("how", ["missing", "cut", "empty", "a file"])
def test_digests_that_are_missing_or_damaged_are_named(two_ranks, tmp_path, how):
    for error, said in two_ranks.run(load_damaged_digests, str(tmp_path), how):
        if how == "missing":
            assert not error and len(said) == 1 and "sha256.json is missing" in said[0]
        elif how in ("cut", "empty"):
            assert "sha256.json is damaged" in error and not said
        else:
            assert re.search(r"\[zero.load_checkpoint\] .*distcp is missing: restore the file", error)
