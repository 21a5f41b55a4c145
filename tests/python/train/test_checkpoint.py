# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: what was acknowledged survives a stop at any system call, and damage of any kind is detected."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from killed_runs import Stop
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from train_runs import NANO, files_of_at_most, write_inputs
from transformers import LlamaConfig, LlamaForCausalLM

from octavo import durable_files
from octavo.train.checkpoint import manifest, restore, state_file
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
from octavo.train.data.dataset import load_corpus
from octavo.train.data.tokenizer import train_tokenizer
from octavo.train.errors import JobError
from octavo.train.launch.world import World

pytestmark = pytest.mark.timeout(60)
RUN = "fingerprint of the run"


class Shelf:
    """The checkpoints of a run of one rank, in a temporary folder."""

    def __init__(self, world, out: Path) -> None:
        self.world, self.folder = world, out / "checkpoint"
        self.disk = find_disk(world, out)
        self.warnings: list[str] = []

    def writer(self, resumed_step: int = 0) -> CheckpointWriter:
        return CheckpointWriter(self.world, self.disk, self.folder, RUN, self.warnings.append, resumed_step)

    def newest(self, run: str = RUN) -> int | None:
        found = restore.newest_checkpoint(self.world, self.disk, self.folder, run, self.warnings.append)
        return found.step if found else None

    def own(self, step: int):
        return restore.load_rank_states(self.world, self.folder, restore.Found(step, holders=(0,)))


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


def test_whoever_may_read_one_file_of_a_step_may_read_all(shelf):
    save(shelf.writer(), 3)
    modes = {path.name: path.stat().st_mode for path in step_folder(shelf.folder, 3).iterdir()}
    assert modes[OPTIMIZER] and len(set(modes.values())) == 1


def test_links_lead_to_the_newest_step_and_only_to_what_transformers_opens(shelf):
    save(shelf.writer(), 1, 2)
    assert os.readlink(shelf.folder / "latest") == "step-000002"
    links = sorted(path.name for path in shelf.folder.iterdir() if path.is_symlink())
    assert links == ["config.json", "latest", MODEL]
    assert (shelf.folder / MODEL).read_text() == f"content of {MODEL}"


def test_a_copy_whose_links_became_folders_goes_on(shelf):
    save(shelf.writer(), 1)
    latest = shelf.folder / "latest"
    latest.unlink()
    shutil.copytree(shelf.folder / "step-000001", latest)
    (shelf.folder / ".aside-of-nobody").write_text("")
    save(shelf.writer(resumed_step=1), 2)
    assert os.readlink(latest) == "step-000002"
    assert not list(shelf.folder.glob(".*"))


def damage_flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def damage_truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


FILES = (MODEL, OPTIMIZER, TRAINER, "config.json", manifest.NAME, rank_file(0, 1))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *((name, damage_flip) for name in FILES),
        *((name, damage) for name in (MODEL, manifest.NAME) for damage in (damage_truncate, Path.unlink)),
    ],
)
def test_a_damaged_step_is_passed_over_with_one_line_that_names_the_file(shelf, name, damage):
    save(shelf.writer(), 1, 2)
    damage(step_folder(shelf.folder, 2) / name)
    assert shelf.newest() == 1
    assert len(shelf.warnings) == 1
    assert f"step-000002/{name}" in shelf.warnings[0]


def test_a_flipped_bit_in_each_byte_of_a_manifest_is_seen(shelf):
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


@pytest.mark.parametrize("kind", ["file", "link", "link to nothing"])
def test_what_is_no_folder_under_the_name_of_a_step_is_replaced(shelf, tmp_path, kind):
    save(shelf.writer(), 1)
    path = step_folder(shelf.folder, 2)
    path.write_text("not a step") if kind == "file" else path.symlink_to(elsewhere(tmp_path, kind))
    save(shelf.writer(resumed_step=1), 2)
    assert shelf.newest() == 2
    assert not path.is_symlink() and not list(shelf.folder.glob(".*"))
    assert (tmp_path / "disk" / "model").exists() == (kind == "link")


def elsewhere(folder: Path, kind: str) -> Path:
    """Returns the target of a link: a folder with a file in it, or nothing."""
    target = folder / "disk"
    if kind == "link":
        target.mkdir()
        (target / "model").write_text("of an older step")
    return target


@pytest.mark.parametrize("kind", ["link", "link to nothing"])
def test_of_an_old_step_that_is_a_link_only_the_link_is_removed(shelf, tmp_path, kind):
    step_folder(shelf.folder, 1).parent.mkdir()
    step_folder(shelf.folder, 1).symlink_to(elsewhere(tmp_path, kind))
    save(shelf.writer(), 2, 3)
    assert saved_steps(shelf.folder) == [3, 2]
    assert (tmp_path / "disk" / "model").exists() == (kind == "link")
    assert shelf.warnings == []


def test_an_old_step_that_cannot_be_removed_is_named_once_and_the_job_goes_on(shelf, monkeypatch):
    old, real = step_folder(shelf.folder, 1), shutil.rmtree

    def remove(path: Path, **options) -> None:
        if path == old:
            raise PermissionError(1, "Operation not permitted")
        real(path, **options)

    monkeypatch.setattr(shutil, "rmtree", remove)
    save(shelf.writer(), 1, 2, 3, 4)
    assert saved_steps(shelf.folder) == [4, 3, 1]
    assert shelf.warnings == [f"{old} is no longer needed and cannot be removed: Operation not permitted"]


def test_no_good_step_among_several_is_an_error_not_a_fresh_start(shelf):
    save(shelf.writer(), 1, 2)
    for step in (1, 2):
        damage_flip(step_folder(shelf.folder, step) / MODEL)
    with pytest.raises(JobError, match="start over with --fresh"):
        shelf.newest()
    assert len(shelf.warnings) == 2


def test_the_checkpoint_of_another_run_is_not_loaded(shelf):
    save(shelf.writer(), 1)
    with pytest.raises(JobError, match=r"both whole and of this run: put back .*, or start over with --fresh"):
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
        if done == 2:  # a save makes fewer calls than this: each of them has been a stop
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
    assert not list(shelf.folder.glob(".aside-*"))


def test_a_model_or_tokenizer_that_the_disk_has_no_room_for_is_told_in_a_sentence(shelf, tmp_path, capfd):
    model = LlamaForCausalLM(LlamaConfig(vocab_size=600, **{k: v for k, v in NANO.items() if k != "model_type"}))
    tokenizer = train_tokenizer(load_corpus(write_inputs(tmp_path)[0], seed=0))
    writer = shelf.writer()
    for saved in (model, tokenizer):
        with files_of_at_most(4096), pytest.raises(JobError) as failure:
            writer.save(2, saved.save_pretrained, {})
        assert re.fullmatch(
            r"\[train\.writer\] the checkpoint of step 2 in .*/checkpoint cannot be written: .*File too large.*; once "
            r"the disk has room and can be written to, the same command continues from the last checkpoint, if there "
            r"is one",
            str(failure.value),
        )
        assert not list(shelf.folder.glob(".aside-*"))
    assert "Traceback" not in capfd.readouterr().err


def test_a_new_out_is_on_the_disk_before_anything_is_written_to_it(world, tmp_path, monkeypatch):
    synced, real = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), real(fd)))
    find_disk(world, tmp_path / "runs" / "today")
    assert sorted(synced) == [str(tmp_path), str(tmp_path / "runs")]


def save_while_rank_1_cannot_see_the_mark_of_rank_0(rank: int, out: str) -> tuple[tuple[int, ...], list[str]]:
    """Simulates a network disk that shows rank 1 an old state. Returns the rank's view and the files of the step it
    saved."""
    world = World(rank, 2)
    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:
            glob, exists = Path.glob, Path.exists
            hidden = re.compile(r"\.rank-\w+-0")
            patch.setattr(Path, "glob", lambda *args: (p for p in glob(*args) if not hidden.fullmatch(p.name)))
            patch.setattr(Path, "exists", lambda p: not hidden.fullmatch(p.name) and exists(p))
        disk = find_disk(world, Path(out))
    folder = Path(out) / "checkpoint"
    CheckpointWriter(world, disk, folder, RUN, print).save(1, write_shared, {})
    return disk.members, sorted(path.name for path in step_folder(folder, 1).iterdir())


def test_ranks_with_different_views_of_out_agree_on_one(two_ranks, tmp_path):
    whole = sorted([MODEL, OPTIMIZER, TRAINER, "config.json", manifest.NAME, rank_file(0, 2), rank_file(1, 2)])
    for members, files in two_ranks.run(save_while_rank_1_cannot_see_the_mark_of_rank_0, str(tmp_path)):
        assert members == (0, 1)
        assert files == whole


def newest_with_an_old_listing_on_rank_0(rank: int, outs: list[str]):
    with pytest.MonkeyPatch.context() as patch:
        if rank == 0:
            patch.setattr(restore, "saved_steps", lambda _folder: [])
        return load_newest(rank, 2, outs)


def test_a_step_that_only_another_rank_has_in_its_listing_is_found(two_ranks, tmp_path):
    outs = [str(tmp_path)] * 2
    two_ranks.run(save_one_step, 2, outs)
    assert two_ranks.run(newest_with_an_old_listing_on_rank_0, outs) == [(2, [0.0]), (2, [1.0])]


def save_one_step(rank: int, size: int, outs: list[str]) -> None:
    """Saves step 3 as one of `size` ranks, each in its own folder of `outs`."""
    world, out = World(rank, size), Path(outs[rank])
    state = {"handle": {"rank": rank, "residual": torch.full((3,), float(rank))}}
    CheckpointWriter(world, find_disk(world, out), out / "checkpoint", RUN, print).save(3, write_shared, state)


def load_newest(rank: int, size: int, outs: list[str]):
    """Returns what this rank loads, as (number of ranks that saved, the first value of each residual), or an error's
    text."""
    world, out = World(rank, size), Path(outs[rank])
    folder, warnings = out / "checkpoint", []
    try:
        found = restore.newest_checkpoint(world, find_disk(world, out), folder, RUN, warnings.append)
    except JobError as error:
        return str(error)
    if found is None:
        return None
    states = restore.load_rank_states(world, folder, found)
    states = [states] if isinstance(states, dict) else states
    return found.world_size, [state["handle"]["residual"].tolist()[0] for state in states]


@pytest.mark.parametrize("separate", [False, True], ids=["one disk", "separate disks"])
def test_another_number_of_ranks_reads_the_states_of_all_that_saved(world, two_ranks, three_ranks, tmp_path, separate):
    outs = [str(tmp_path / f"disk-{rank if separate else 0}") for rank in range(3)]
    two_ranks.run(save_one_step, 2, outs)
    assert three_ranks.run(load_newest, 3, outs) == [(2, [0.0, 1.0])] * 3
    assert two_ranks.run(load_newest, 2, outs) == [(2, [0.0]), (2, [1.0])]
    if separate:
        assert load_newest(0, 1, outs).startswith("[train.restore] no checkpoint in ")
    else:
        assert load_newest(0, 1, outs) == (2, [0.0, 1.0])


def test_one_rank_that_becomes_two_is_not_taken_for_the_same_number(world, two_ranks, tmp_path):
    outs = [str(tmp_path)] * 2
    save_one_step(0, 1, outs)
    assert two_ranks.run(load_newest, 2, outs) == [(1, [0.0])] * 2


def test_a_step_that_one_disk_did_not_finish_does_not_count(two_ranks, tmp_path):
    outs = [str(tmp_path / f"disk-{rank}") for rank in range(2)]
    two_ranks.run(save_one_step, 2, outs)
    shutil.rmtree(step_folder(Path(outs[1]) / "checkpoint", 3))
    assert two_ranks.run(load_newest, 2, outs) == [None, None]


def test_torch_distributed_checkpoint_reads_a_step_in_any_sharding(world, tmp_path):
    writer = Shelf(world, tmp_path).writer()

    def write(folder: Path) -> None:
        save_file({"layer.weight": torch.arange(12.0).view(4, 3)}, folder / MODEL)
        state_file.save_tree(folder / OPTIMIZER, {"state": {0: {"exp_avg": torch.ones(4, 3)}}}, "optimizer")
        (folder / TRAINER).write_text("{}")

    writer.save(1, write, {"handle": {"worker/layer.weight": torch.full((12,), 0.5, dtype=torch.bfloat16)}})
    mesh = init_device_mesh("cpu", (1,))
    state = {
        "layer.weight": distribute_tensor(torch.zeros(4, 3), mesh, [Shard(0)]),
        "optimizer/state/0/exp_avg": distribute_tensor(torch.zeros(4, 3), mesh, [Shard(1)]),
        "rank-0/handle/worker/layer.weight": torch.zeros(12, dtype=torch.bfloat16),
    }
    dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(str(step_folder(tmp_path / "checkpoint", 1))))
    assert torch.equal(state["layer.weight"].full_tensor(), torch.arange(12.0).view(4, 3))
    assert torch.equal(state["optimizer/state/0/exp_avg"].full_tensor(), torch.ones(4, 3))
    assert state["rank-0/handle/worker/layer.weight"].tolist() == [0.5] * 12


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


def test_a_full_disk_is_told_with_the_file(tmp_path, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(state_file, "save_file", full)
    with pytest.raises(OSError, match=r"^\[train\.state_file\] .*/t cannot be written: .*No space left on device"):
        state_file.save_tree(tmp_path / "t", {"a": 1})


def test_a_tree_refuses_what_it_cannot_hold(tmp_path):
    with pytest.raises(TypeError, match=r"^\[train\.state_file\] .* at 'a/0'"):
        state_file.save_tree(tmp_path / "t", {"a": [object()]})
    one, other = torch.ones(1), torch.zeros(1)
    for value, keys in (
        ({"a/b": one, "a": {"b": other}}, "('o', 'a/b') and ('o', 'a', 'b')"),
        ({1: one, "1": other}, "('o', 1) and ('o', '1')"),
    ):
        with pytest.raises(TypeError, match=rf"^\[train\.state_file\] .*{re.escape(keys)} of the state"):
            state_file.save_tree(tmp_path / "t", value, "o")
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
