# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that are damaged or missing: ZeRO's engine names what is wrong, on all ranks alike."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
import torch
from zero_runs import TiedAndFrozen, adamw, engine_of, error_of, inputs_of, net, saved_engine, step_once, train

import octavo


def load_what_breaks_off(rank: int, folder: str) -> list[str]:
    """Returns the error of a load, and that of a backward pass after it."""
    engine = saved_engine(rank, folder)
    if rank == 0:
        for file in (Path(folder) / "latest").glob("*.distcp"):
            file.write_bytes(file.read_bytes()[:-200])
        (Path(folder) / "latest" / "sha256.json").unlink()  # by which it would be refused before anything changes
    torch.distributed.barrier()
    said = error_of(lambda: engine.load_checkpoint(folder))
    return [said, error_of(lambda: engine.backward(engine(inputs_of(rank)).mean()))]


def test_a_checkpoint_that_breaks_off_ends_the_engine(two_ranks, tmp_path):
    for of_load, said in two_ranks.run(load_what_breaks_off, str(tmp_path / "one")):
        assert f" cannot read the checkpoint in {tmp_path / 'one'}: " in of_load
        assert of_load.startswith("RuntimeError: [zero.load_checkpoint] rank ")
        assert said.startswith("RuntimeError: [zero.backward] an earlier error stopped this engine")


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
    engine = octavo.initialize(model := TiedAndFrozen(), adamw(model), {"zero_stage": 2})
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
