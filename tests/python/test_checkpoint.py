# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: what was acknowledged survives a stop at any system call, and damage of any kind is seen."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from train_runs import solo_world

from octavo.train.checkpoint import durable_files, manifest, restore, state_file
from octavo.train.checkpoint.shared_disk import find_disk
from octavo.train.checkpoint.writer import (
    MODEL,
    OPTIMIZER,
    TRAINER,
    CheckpointWriter,
    rank_file,
    saved_steps,
    step_folder,
)
from octavo.train.errors import JobError

pytestmark = pytest.mark.timeout(60)
RUN = "fingerprint of the run"


class Stop(BaseException):
    """Stands for SIGKILL: nobody catches it."""


@pytest.fixture(scope="module")
def world():
    with solo_world() as one:
        yield one


class Shelf:
    """The checkpoints of a run of one rank, in a temporary folder."""

    def __init__(self, world, out: Path) -> None:
        self.world, self.folder = world, out / "checkpoint"
        self.disk = find_disk(world, out)
        self.warnings: list[str] = []

    def writer(self, resumed_step: int = 0) -> CheckpointWriter:
        return CheckpointWriter(self.world, self.disk, self.folder, RUN, resumed_step)

    def newest(self, run: str = RUN) -> int | None:
        return restore.newest_common_step(self.world, self.disk, self.folder, run, self.warnings.append)

    def own(self, step: int):
        return restore.load_rank(self.folder, step, self.world)


@pytest.fixture
def shelf(world, tmp_path):
    return Shelf(world, tmp_path)


def write_shared(folder: Path) -> None:
    for name in (MODEL, OPTIMIZER, TRAINER, "config.json"):
        (folder / name).write_text(f"content of {name}")


def save(writer: CheckpointWriter, *steps: int) -> None:
    for step in steps:
        writer.save(step, write_shared, {"residual": torch.full((5,), float(step)), "plan": "sign+ef"})


def test_a_saved_step_is_found_and_comes_back(shelf):
    assert shelf.newest() is None
    save(shelf.writer(), 5)
    assert shelf.newest() == 5
    state = shelf.own(5)
    assert state["plan"] == "sign+ef"
    assert torch.equal(state["residual"], torch.full((5,), 5.0))
    assert shelf.warnings == []


def test_two_good_steps_are_kept(shelf):
    save(shelf.writer(), 1, 2, 3, 4)
    assert saved_steps(shelf.folder) == [4, 3]
    assert not list(shelf.folder.glob(".*"))


def test_a_resumed_run_keeps_older_steps_until_it_has_two_of_its_own(shelf):
    save(shelf.writer(), 1, 2)
    writer = shelf.writer(resumed_step=2)
    assert saved_steps(shelf.folder) == [2, 1]
    save(writer, 3)
    assert saved_steps(shelf.folder) == [3, 2]


def test_links_lead_to_the_newest_step_and_only_to_what_transformers_opens(shelf):
    save(shelf.writer(), 1, 2)
    assert os.readlink(shelf.folder / "latest") == "step-000002"
    links = sorted(path.name for path in shelf.folder.iterdir() if path.is_symlink())
    assert links == ["config.json", "latest", MODEL]
    assert (shelf.folder / MODEL).read_text() == f"content of {MODEL}"


def damage_flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def damage_truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize("damage", [damage_flip, damage_truncate, Path.unlink])
@pytest.mark.parametrize("name", [MODEL, OPTIMIZER, TRAINER, "config.json", manifest.NAME, rank_file(0, 1)])
def test_a_damaged_step_is_passed_over_with_one_line_that_names_the_file(shelf, name, damage):
    save(shelf.writer(), 1, 2)
    damage(step_folder(shelf.folder, 2) / name)
    assert shelf.newest() == 1
    assert len(shelf.warnings) == 1
    assert f"step-000002/{name}" in shelf.warnings[0]


def test_every_flipped_bit_of_a_manifest_is_seen(shelf):
    save(shelf.writer(), 1)
    path = step_folder(shelf.folder, 1) / manifest.NAME
    good = path.read_bytes()
    for place in range(len(good)):
        bad = bytearray(good)
        bad[place] ^= 1 << (place % 8)
        path.write_bytes(bad)
        with pytest.raises(manifest.Corrupt):
            manifest.verify(path.parent)


def test_a_damaged_step_is_replaced_when_the_run_comes_there_again(shelf):
    save(shelf.writer(), 1, 2)
    damage_flip(step_folder(shelf.folder, 2) / MODEL)
    save(shelf.writer(resumed_step=shelf.newest()), 2)
    assert shelf.newest() == 2


def test_no_good_step_among_several_is_an_error_not_a_fresh_start(shelf):
    save(shelf.writer(), 1, 2)
    for step in (1, 2):
        damage_flip(step_folder(shelf.folder, step) / MODEL)
    with pytest.raises(JobError, match="--fresh starts over"):
        shelf.newest()
    assert len(shelf.warnings) == 2


def test_the_checkpoint_of_another_run_is_not_loaded(shelf):
    save(shelf.writer(), 1)
    with pytest.raises(JobError):
        shelf.newest("another run")
    assert "belongs to another run" in shelf.warnings[0]


@pytest.mark.parametrize("call", ["fsync", "replace", "mkdir", "symlink", "unlink", "rmdir"])
def test_a_stop_at_any_system_call_loses_no_acknowledged_step(shelf, call, monkeypatch):
    done = 0
    for stop_at in range(1, 40):
        acknowledged = shelf.newest() or 0
        writer = shelf.writer(acknowledged)
        with monkeypatch.context() as patch:
            stop_after(patch, call, stop_at)
            try:
                save(writer, acknowledged + 1)
                done += 1
            except Stop:
                pass
        found = shelf.newest()
        assert (found or 0) in (acknowledged, acknowledged + 1)
        if found:
            assert shelf.own(found)["residual"][0] == found
        if done == 2:  # so many calls are never made: every one of them has been a stop
            break
    assert done == 2
    assert shelf.warnings == []


def stop_after(patch: pytest.MonkeyPatch, call: str, count: int) -> None:
    """Makes the `count`-th call of os.`call` the last thing the process does."""
    real, left = getattr(os, call), [count]

    def counted(*args, **kwargs):
        left[0] -= 1
        if left[0] == 0:
            raise Stop
        return real(*args, **kwargs)

    patch.setattr(os, call, counted)


def test_a_failing_write_leaves_the_older_step(shelf):
    writer = shelf.writer()
    save(writer, 1)

    def full(_folder: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(JobError, match="No space left"):
        writer.save(2, full, {})
    assert shelf.newest() == 1


def test_trees_keep_types_keys_and_bits(tmp_path):
    shared = torch.arange(6.0)
    value = {
        "state": {0: {"step": torch.tensor(3.0), "m": shared[:3]}, 1: {"m": shared[3:]}},
        "groups": [{"lr": 0.1, "betas": [0.9, 0.999], "name": None, "on": True}],
        "empty": torch.empty(0, dtype=torch.int64),
        "bytes": torch.tensor([1, 255], dtype=torch.uint8),
        "half": torch.tensor([1.5, float("nan")], dtype=torch.bfloat16),
    }
    state_file.save_tree(tmp_path / "t", value)
    back = state_file.load_tree(tmp_path / "t")
    assert back["groups"] == value["groups"]
    assert set(back["state"]) == {0, 1}
    assert torch.equal(back["state"][1]["m"], shared[3:])
    for name in ("empty", "bytes"):
        assert back[name].dtype == value[name].dtype
        assert torch.equal(back[name], value[name])
    assert torch.equal(back["half"].view(torch.int16), value["half"].view(torch.int16))


def test_a_tree_refuses_what_it_cannot_hold(tmp_path):
    with pytest.raises(TypeError, match=r"^\[train\.state_file\] .* at 'a/0'"):
        state_file.save_tree(tmp_path / "t", {"a": [object()]})
    (tmp_path / "t").write_bytes(b"no tensors")
    with pytest.raises(ValueError, match=r"^\[train\.state_file\] "):
        state_file.load_tree(tmp_path / "t")


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    durable_files.write_json(path, {"a": 1})
    stop_after(monkeypatch, "fsync", 1)
    with pytest.raises(Stop):
        durable_files.write_json(path, {"a": 2})
    assert path.read_text() == '{\n  "a": 1\n}\n'
