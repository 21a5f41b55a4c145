# SPDX-License-Identifier: Apache-2.0
"""Whose `--out` is: runs that continue there, runs that are refused, and `--fresh`."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from train_runs import NANO, nano_config, raising, read_curve

from octavo.train import job, opening
from octavo.train.checkpoint import run_folder
from octavo.train.checkpoint.identity import identity_of, key_of
from octavo.train.checkpoint.writer import saved_steps
from octavo.train.config import TrainConfig
from octavo.train.data.dataset import load_corpus
from octavo.train.data.training_data import load_data
from octavo.train.errors import JobError
from octavo.train.job import run_job
from octavo.train.launch.world import World

pytestmark = pytest.mark.timeout(120)


def test_fresh_starts_over_and_touches_nothing_of_others(world, tmp_path):
    config = nano_config(tmp_path, steps=2)
    run_job(config, world, None)
    mine = Path(config.out) / "notes.txt"
    mine.write_text("mine")
    summary = run_job(dataclasses.replace(config, steps=4, fresh=True), world, None)
    assert summary["steps"] == 4
    assert len(read_curve(Path(config.out))) == 4
    assert mine.read_text() == "mine"


def test_an_attempt_that_broke_off_before_it_removed_the_run_is_not_taken_for_one_that_did(world, tmp_path):
    """torchrun starts a broken job again: `--fresh` still counts then, until an attempt has removed the earlier run."""
    config, launch = nano_config(tmp_path, steps=2), torch.distributed.HashStore()
    run_job(config, world, None)
    attempt = World(0, 1, launch)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(RuntimeError, match="broken off"):
        patch.setattr(job, "build_strategy", raising(RuntimeError("[x] broken off")))
        run_job(dataclasses.replace(config, fresh=True), attempt, None)
    assert not attempt.has_started_over()
    run_job(dataclasses.replace(config, fresh=True), attempt, None)
    assert World(0, 1, launch).has_started_over()
    assert not world.has_started_over()


def test_where_attempts_cannot_tell_each_other_only_the_first_starts_over(world, monkeypatch):
    assert not world.has_started_over()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert world.has_started_over()


@pytest.mark.parametrize("fresh", [False, True])
def test_what_a_killed_run_had_not_finished_writing_is_removed(world, tmp_path, fresh):
    config = nano_config(tmp_path, steps=1)
    run_job(config, world, None)
    left = [Path(config.out) / f".{name}.4194000" for name in ("run.json", "summary.json", "loss.png")]
    others = [Path(config.out) / name for name in (".loss.png.old", ".notes.17", "loss.png.17")]
    for path in (*left, *others):
        path.touch()
    run_job(dataclasses.replace(config, fresh=fresh), world, None)
    assert not any(path.exists() for path in left) and all(path.exists() for path in others)


def test_a_run_is_removed_with_what_it_had_not_finished_writing(world, tmp_path):
    config = nano_config(tmp_path, steps=1)
    run_job(config, world, None)
    (Path(config.out) / ".summary.json.4194000").touch()
    opening.clear_job(config, world)
    assert {path.name for path in Path(config.out).iterdir()} == {run_folder.LOCK}


def test_an_earlier_run_that_cannot_be_removed_is_not_mixed_with_the_new_one(world, tmp_path, monkeypatch):
    config = nano_config(tmp_path, steps=2)
    run_job(config, world, None)
    before = read_curve(Path(config.out))
    monkeypatch.setattr(shutil, "rmtree", raising(PermissionError(1, "Operation not permitted")))
    with pytest.raises(JobError, match=r"\[train\.job\] .* cannot be written: Operation not permitted"):
        run_job(dataclasses.replace(config, fresh=True), world, None)
    assert read_curve(Path(config.out)) == before


def test_fresh_removes_nothing_of_others_through_a_link(world, tmp_path):
    config, disk = nano_config(tmp_path, steps=2), tmp_path / "disk"
    run_job(config, world, None)
    (Path(config.out) / "checkpoint").rename(disk)
    (Path(config.out) / "checkpoint").symlink_to(disk)
    for name in ("of somebody else", "step-by-step-guide"):
        (disk / name).mkdir()
    (disk / "step-notes.txt").touch()
    (disk / "my link").symlink_to(tmp_path)
    run_job(dataclasses.replace(config, steps=1, fresh=True), world, None)
    assert saved_steps(disk) == [1]
    others = ("of somebody else", "step-by-step-guide", "step-notes.txt", "my link")
    assert all((disk / name).exists() for name in others)
    assert (Path(config.out) / "checkpoint").is_symlink()


def test_a_fresh_run_that_is_refused_leaves_the_earlier_one_alone(world, tmp_path):
    config = nano_config(tmp_path, plan="int4+ef", zero=2)
    run_job(config, world, None)
    before = {path: path.read_bytes() for path in Path(config.out).rglob("*") if path.is_file()}
    with pytest.raises(JobError, match=r"the rule for none.+ fits no parameter"):
        run_job(dataclasses.replace(config, fresh=True, plan="int4+ef;none.*=int8+ef"), world, None)
    assert {path: path.read_bytes() for path in Path(config.out).rglob("*") if path.is_file()} == before


def test_a_run_of_an_older_version_is_refused_but_for_fresh(world, tmp_path):
    config = nano_config(tmp_path, steps=2)
    run_job(config, world, None)
    record = Path(config.out) / "run.json"
    old = json.loads(record.read_text())
    record.write_text(json.dumps({**old, "schema": 1, "identity": {**old["identity"], "ranks": 1}}))
    with pytest.raises(JobError, match=r"is from another version of Octavo \(schema 1, .* or --fresh"):
        run_job(config, world, None)
    assert run_job(dataclasses.replace(config, fresh=True), world, None)["steps"] == 2


@pytest.mark.parametrize("fresh", [False, True])
def test_files_of_somebody_else_are_not_overwritten(world, tmp_path, fresh):
    config = nano_config(tmp_path, fresh=fresh)
    precious = Path(config.out) / "metrics.jsonl"
    precious.parent.mkdir()
    precious.write_text("years of work")
    with pytest.raises(JobError, match=r"has a metrics\.jsonl but no run\.json"):
        run_job(config, world, None)
    assert precious.read_text() == "years of work"


def test_out_must_be_a_directory(world, tmp_path):
    config = nano_config(tmp_path)
    Path(config.out).write_text("a file")
    for out in (config.out, f"{config.out}/below"):
        with pytest.raises(JobError, match=r"^\[train\.shared_disk\] --out .* is a file, or is below one: name a"):
            run_job(dataclasses.replace(config, out=out), world, None)


@pytest.mark.parametrize("target", ["nothing", "out"])
def test_an_out_that_is_a_link_to_nothing_is_named(world, tmp_path, target):
    config = nano_config(tmp_path)
    Path(config.out).symlink_to(tmp_path / target)
    for out in (config.out, f"{config.out}/below"):
        with pytest.raises(
            JobError, match=r"^\[train\.shared_disk\] --out .* is a link to nothing, or is below one: make"
        ):
            run_job(dataclasses.replace(config, out=out), world, None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"schema": 5, "identity": {}, "resolved": {}}', "is not the record of a run: restore it, or choose another"),
        ("{half", "is not the record of a run: restore it, or choose another --out"),
        (None, "cannot be read (Is a directory): make it readable, or choose another --out"),
    ],
)
def test_a_damaged_record_of_a_run_is_named(world, tmp_path, text, words):
    config = nano_config(tmp_path)
    record = Path(config.out) / run_folder.RUN
    record.parent.mkdir()
    record.mkdir() if text is None else record.write_text(text)
    with pytest.raises(JobError) as caught:
        run_job(config, world, None)
    assert str(caught.value).startswith(f"[train.run_folder] {record} {words}")


@pytest.mark.parametrize(
    ("asked", "chosen"), [("auto", "bf36"), ("auto", "auto"), ("auto", None), ("auto", ["bf16"]), ("fp32", "bf16")]
)
def test_a_record_with_a_precision_that_its_run_cannot_have_chosen_is_refused(tmp_path, asked, chosen):
    identity = identity_of(TrainConfig(precision=asked), load_corpus(None, seed=0), {})
    run_folder.write_record(tmp_path, identity, {"precision": chosen})
    with pytest.raises(ValueError, match=r"^\[train\.run_folder\] .*run\.json is not the record of a run: restore it"):
        run_folder.claim(tmp_path, identity, fresh=False)


def test_two_runs_at_once_on_one_out_are_refused(world, tmp_path):
    config = nano_config(tmp_path)
    with (
        run_folder.lock(Path(config.out)),
        pytest.raises(JobError, match="is locked by another running job"),
    ):
        run_job(config, world, None)
    run_job(config, world, None)


def test_a_disk_without_locks_is_told(tmp_path, monkeypatch):
    def without_locks(*_: object) -> NoReturn:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(run_folder.fcntl, "flock", without_locks)
    with pytest.raises(ValueError, match=r"cannot be locked \(Function not implemented\), as on some network disks"):
        run_folder.lock(tmp_path)


def test_the_rate_of_the_adamw_beside_muon_makes_a_run_another(tmp_path):
    """Runs without one have the key of versions that did not know it."""
    plain = TrainConfig(plan="dense", optimizer="muon")
    own = dataclasses.replace(plain, adamw_lr=1e-3)
    identities = [identity_of(config, load_corpus(None, seed=0), {}) for config in (plain, own)]
    assert "adamw_lr" not in identities[0]
    assert key_of(identities[0]) != key_of(identities[1])
    for there, here, words in ((0, 1, "that of lr there and 0.001 here"), (1, 0, "0.001 there and that of lr here")):
        run_folder.write_record(tmp_path, identities[there], {})
        run_folder.claim(tmp_path, identities[there], fresh=False)
        with pytest.raises(ValueError, match=words):
            run_folder.claim(tmp_path, identities[here], fresh=False)


def load_with_other_options(rank: int, folder: str, changes: list[dict[str, Any]]) -> str:
    (Path(folder) / str(rank)).mkdir()
    config = nano_config(Path(folder) / str(rank), **changes[rank])
    try:
        load_data(config, World(rank, 2))
    except JobError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([{}, {"port": 29555}], ""),
        ([{"batch_size": 2}, {"batch_size": 4}], "--batch-size is 4 on rank 1 and 2 on rank 0: start all ranks with"),
        ([{"eval_every": 2}, {}], "--eval-every is 4 on rank 1 and 2 on rank 0"),
    ],
)
def test_ranks_with_other_options_are_told(two_ranks, tmp_path, changes, words):
    for said in two_ranks.run(load_with_other_options, str(tmp_path), changes):
        assert words in said and bool(said) == bool(words)


def build_another_model(rank: int, folder: str) -> str:
    (Path(folder) / str(rank)).mkdir()
    config = nano_config(Path(folder) / str(rank))
    Path(config.model).write_text(json.dumps(NANO | {"hidden_act": ["silu", "gelu"][rank]}))
    try:
        opening.build_model(config, World(rank, 2), load_data(config, World(rank, 2)))
    except JobError as error:
        return str(error)
    return ""


def test_ranks_with_models_that_differ_in_no_shape_are_told(two_ranks, tmp_path):
    for said in two_ranks.run(build_another_model, str(tmp_path)):
        assert "nano.json describes another model on rank 1 than on rank 0" in said
