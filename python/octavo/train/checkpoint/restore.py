# SPDX-License-Identifier: Apache-2.0
"""Finding the checkpoint to resume from: the newest step that verifies on every disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from octavo.train.checkpoint import manifest
from octavo.train.checkpoint.shared_disk import Disk
from octavo.train.checkpoint.state_file import load_tree
from octavo.train.checkpoint.writer import MODEL, OPTIMIZER, TRAINER, rank_file, saved_steps, step_folder
from octavo.train.errors import JobError
from octavo.train.launch.world import World

_NONE = 0


def newest_common_step(
    world: World, disk: Disk, folder: Path, fingerprint: str, warn: Callable[[str], None]
) -> int | None:
    """The newest step that verifies on every disk, None where no checkpoint was ever completed.

    A corrupt step is passed over with one line to `warn`. Raises JobError where there are checkpoints but
    none that all disks hold intact: starting over would then throw away work that can perhaps be rescued.
    """
    skipped: list[str] = []
    bound = None
    while True:
        mine = _newest_good(disk, world.size, folder, fingerprint, bound, skipped) if disk.is_leader else None
        steps = [step for step in world.gather(mine) if step is not None]
        bound = min(steps)
        if bound == max(steps):
            break
    for line in skipped:
        warn(f"skipped a checkpoint: {line}")
    # One disk may be a step ahead of another that was killed before its first; two steps ahead means a loss.
    lost = world.gather(bool(skipped) or (disk.is_leader and len(saved_steps(folder)) > 1))
    if bound == _NONE and any(lost):
        raise JobError(
            f"[train.restore] expected a good checkpoint for every rank in {folder}, got none: --fresh starts over"
        )
    return None if bound == _NONE else bound


def load_trainer(folder: Path, step: int) -> dict[str, Any]:
    """Rank 0's trainer state of a verified step."""
    return json.loads((step_folder(folder, step) / TRAINER).read_text())


def load_optimizer(folder: Path, step: int) -> Any:
    """Rank 0's optimizer state of a verified step."""
    return load_tree(step_folder(folder, step) / OPTIMIZER)


def load_rank(folder: Path, step: int, world: World) -> Any:
    """This rank's own state of a verified step."""
    return load_tree(step_folder(folder, step) / rank_file(world.rank, world.size))


def _newest_good(disk: Disk, size: int, folder: Path, fingerprint: str, bound: int | None, skipped: list[str]) -> int:
    for step in saved_steps(folder):
        if bound is not None and step > bound:
            continue
        try:
            _check(disk, size, step_folder(folder, step), step, fingerprint)
            return step
        except manifest.Corrupt as error:
            if str(error) not in skipped:
                skipped.append(str(error))
    return _NONE


def _check(disk: Disk, size: int, path: Path, step: int, fingerprint: str) -> None:
    found = manifest.verify(path)
    if (found.step, found.world_size, found.fingerprint) != (step, size, fingerprint):
        raise manifest.Corrupt(f"{path} belongs to another run")
    expected = [rank_file(rank, size) for rank in disk.members]
    if disk.has_model:
        expected += [MODEL, OPTIMIZER, TRAINER]
    missing = [name for name in expected if name not in found.blobs]
    if missing:
        raise manifest.Corrupt(f"{path} lacks {missing[0]}")
