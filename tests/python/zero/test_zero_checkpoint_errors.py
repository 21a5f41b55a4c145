# SPDX-License-Identifier: Apache-2.0
"""Saves and loads of ZeRO's engine that fail or are refused, on all ranks alike and without a loss."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from killed_runs import Stop
from torch import nn
from zero_runs import TiedAndFrozen, adamw, engine_of, error_of, net, step_once, train

import octavo
from octavo import durable_files
from octavo.zero.all_or_none import require_none_failed


def killed_in_a_save(rank: int, folder: str) -> tuple[list[float], list[float]]:
    """Returns the losses of an engine that resumes from a save although a second one was interrupted, and those
    expected."""
    engine = octavo.initialize(model := TiedAndFrozen(), adamw(model), {"zero_stage": 3})
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
    other = octavo.initialize(model := TiedAndFrozen(), adamw(model), {"zero_stage": 3})
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


def save_nowhere(rank: int, folder: str) -> str:
    engine = octavo.initialize(model := nn.Linear(4, 4), adamw(model), {"zero_stage": 2})
    return error_of(lambda: engine.save_checkpoint(Path(folder) / "file" / "below"))


def test_a_folder_that_cannot_be_made_is_an_error_on_every_rank(two_ranks, tmp_path):
    (tmp_path / "file").touch()
    for said in two_ranks.run(save_nowhere, str(tmp_path)):
        assert said.startswith("OSError: [zero.save_checkpoint] rank 0 cannot write to ")


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
