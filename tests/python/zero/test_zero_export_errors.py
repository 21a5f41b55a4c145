# SPDX-License-Identifier: Apache-2.0
"""Exports of ZeRO's engine that fail, on all ranks alike and without a loss."""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from zero_runs import TiedAndFrozen, adamw, error_of, step_once

import octavo
from octavo.zero import export


def export_nowhere(rank: int, folder: str) -> str:
    engine = octavo.initialize(model := TiedAndFrozen(), adamw(model), {"zero_stage": 3})
    return error_of(lambda: engine.export_safetensors(Path(folder) / "none" / "model.safetensors"))


def test_a_file_that_cannot_be_written_is_an_error_on_every_rank(two_ranks, tmp_path):
    for said in two_ranks.run(export_nowhere, str(tmp_path)):
        assert said.startswith("OSError: [zero.export_safetensors] rank 0 cannot write ")
        assert said.endswith("No such file or directory")


def export_without_room(rank: int, path: str) -> str:
    """Exports to a disk that is full after the first tensor."""
    engine = octavo.initialize(model := TiedAndFrozen(), adamw(model), {"zero_stage": 3})
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
    engine = octavo.initialize(model := TiedAndFrozen(), adamw(model), {"zero_stage": 3, "timeout_s": 10})
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


def export_of_complex(rank: int, folder: str) -> str:
    model = nn.Linear(4, 4)
    model.register_buffer("rotations", torch.ones(3, dtype=torch.complex64))
    engine = octavo.initialize(model, adamw(model), {"zero_stage": 3})
    return error_of(lambda: engine.export_safetensors(f"{folder}/model.safetensors"))


def test_a_dtype_that_the_file_cannot_hold_is_an_error_on_every_rank(two_ranks, tmp_path):
    for said in two_ranks.run(export_of_complex, str(tmp_path)):
        words = "a safetensors file cannot hold rotations, which is torch.complex64"
        assert f"ValueError: [zero.export_safetensors] {words}" in said
