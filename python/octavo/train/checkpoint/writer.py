# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that a SIGKILL or a power cut at any moment cannot spoil.

    out/checkpoint/step-000100/   model.safetensors config.json tokenizer …  what transformers opens
                                  optimizer.safetensors trainer.json         the rest of rank 0's state
                                  rank-00000-of-00002.safetensors …          residuals, RNG, with ZeRO the
                                                                             optimizer's part: one per rank
                                  manifest.json                              size and SHA-256 of each of them
    out/checkpoint/latest         -> step-000100
    out/checkpoint/config.json …  -> latest/…, so that from_pretrained("out/checkpoint") works too

A step is written to a hidden folder beside the others, every file fsynced, the manifest last. Then the folder is
renamed and its parent fsynced. A step folder is never written to again. At least two good steps are kept.

With several machines `--out` may be one network disk or separate local disks. On separate disks every
host's folder holds the files of its own ranks, with a manifest of its own; model and optimizer are on rank
0's host. A step counts only where every disk has it; on resume rank 0 sends model and optimizer to the
others. Another number of ranks reads the files of all ranks that saved.

The files are safetensors with names that are unique in the folder, so that torch.distributed.checkpoint reads them
(`HuggingFaceStorageReader`), for any sharding. Its writers are not used: one stores plain values and its index as
pickles, which run code when they are loaded, the other stores tensors only; neither writes checksums, and both put one
index of all ranks on rank 0's disk.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from octavo import durable_files
from octavo.train.checkpoint import manifest
from octavo.train.checkpoint.shared_disk import Disk
from octavo.train.checkpoint.state_file import save_tree
from octavo.train.errors import JobError, writing
from octavo.train.launch.world import World

KEEP = 2
LATEST = "latest"
OPTIMIZER = "optimizer.safetensors"
TRAINER = "trainer.json"
MODEL = "model.safetensors"
_STEP = re.compile(r"step-(\d{6,})")
_ASIDE = ".aside-"


def step_folder(folder: Path, step: int) -> Path:
    """Returns the folder of the checkpoint of `step`."""
    return folder / f"step-{step:06d}"


def rank_file(rank: int, size: int) -> str:
    """Returns the name of the file with a rank's own state in a step folder."""
    return f"rank-{rank:05d}-of-{size:05d}.safetensors"


def saved_steps(folder: Path) -> list[int]:
    """Returns the steps that have a folder, newest first, good or not."""
    if not folder.is_dir():
        return []
    found = (_STEP.fullmatch(path.name) for path in folder.iterdir())
    return sorted((int(match[1]) for match in found if match), reverse=True)


def is_of_a_run(path: Path) -> bool:
    """Whether a run has written this entry of its checkpoint folder, in which others may have files, too."""
    is_step = _STEP.fullmatch(path.name) is not None or path.name.startswith(_ASIDE)
    if path.is_symlink():
        target = os.readlink(path)
        return is_step or path.name == LATEST or target.startswith(f"{LATEST}/") or bool(_STEP.fullmatch(target))
    return path.is_dir() and (is_step or path.name == LATEST)  # a copy may have a folder in the place of the link


def point_to(folder: Path, step: int, has_model: bool) -> None:
    """Lets the links of `folder` lead to the checkpoint of `step`. Those that do already are left alone."""
    targets = {LATEST: step_folder(folder, step).name}
    if has_model:
        private = (manifest.NAME, OPTIMIZER, TRAINER)
        names = (path.name for path in step_folder(folder, step).iterdir())
        targets |= {n: f"{LATEST}/{n}" for n in names if n not in private and not n.startswith("rank-")}
    for name, target in targets.items():
        link = folder / name
        if not (link.is_symlink() and os.readlink(link) == target):
            durable_files.point_link(link, target)


class CheckpointWriter:
    """Writes the steps of one run. Every method is called by all ranks together."""

    def __init__(
        self,
        world: World,
        disk: Disk,
        folder: Path,
        fingerprint: str,
        warn: Callable[[str], None],
        resumed_step: int = 0,
    ) -> None:
        """`warn` takes one line for each older step that cannot be removed."""
        self._world, self._disk, self._folder, self._fingerprint = world, disk, folder, fingerprint
        self._warn, self._unremovable = warn, set[int]()
        self._good = [resumed_step] if resumed_step else []
        world.agree(self._sweep)

    def save(self, step: int, write_shared: Callable[[Path], None], rank_state: Any) -> None:
        """Writes the checkpoint of `step`. Raises JobError; the older steps are then untouched, and what was written
        of this one is removed, unless it is complete and only the link to it could not be set. Where one of several
        disks could not give its folder the step's name, the folders of others may have it already, and stay: the step
        is then not on every disk, and a resumed run passes over it.

        `write_shared(folder)` runs on all ranks together; rank 0 writes model, optimizer and trainer state.
        `rank_state` is any tree of tensors and plain values.
        """
        aside = self._folder / f"{_ASIDE}{step:06d}-{self._disk.leader}"
        phases = (
            lambda: self._on_leader(lambda: _make_empty(aside)),
            lambda: self._write_own(aside, rank_state),
            lambda: write_shared(aside),
            lambda: self._on_leader(lambda: manifest.write(aside, step, self._world.size, self._fingerprint)),
            lambda: self._on_leader(lambda: _publish(aside, step_folder(self._folder, step))),
            lambda: self._on_leader(lambda: point_to(self._folder, step, self._disk.has_model)),
        )
        # A phase begins once all ranks have ended the one before: no disk publishes a step at which another disk
        # failed.
        try:
            for phase in phases:
                self._world.agree(lambda phase=phase: self._write(step, phase))
        except JobError:  # all ranks have ended the phase, so that nobody still writes there
            self._on_leader(lambda: shutil.rmtree(aside, ignore_errors=True))
            raise
        self._good.append(step)
        self._world.agree(lambda: self._on_leader(self._prune))

    def _write(self, step: int, phase: Callable[[], None]) -> None:
        with writing(what=f"the checkpoint of step {step} in {self._folder}", where="train.writer"):
            phase()

    def _on_leader(self, work: Callable[[], None]) -> None:
        if self._disk.is_leader:
            work()

    def _write_own(self, aside: Path, rank_state: Any) -> None:
        path = aside / rank_file(self._world.rank, self._world.size)
        save_tree(path, rank_state, f"rank-{self._world.rank}")
        durable_files.sync_file(path)

    def _prune(self) -> None:
        if len(self._good) < KEEP:
            return
        oldest_kept = self._good[-KEEP]
        for step in saved_steps(self._folder):
            if step < oldest_kept and step not in self._unremovable:
                self._remove_step(step)

    def _remove_step(self, step: int) -> None:
        """Removes an older step. The newest is complete by now, so that a failure is no reason to end the job."""
        path = step_folder(self._folder, step)
        try:
            durable_files.remove(path)
        except OSError as error:
            self._unremovable.add(step)  # warns once, not after every checkpoint
            self._warn(f"{path} is no longer needed and cannot be removed: {error.strerror or error}")

    def _sweep(self) -> None:
        """Removes what a killed run had not finished writing."""
        if not self._disk.is_leader:
            return
        with writing(what=str(self._folder), where="train.writer"):
            durable_files.make_folder(self._folder)
            for path in self._folder.glob(_ASIDE + "*"):
                durable_files.remove(path)


def _make_empty(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir()


def _publish(aside: Path, final: Path) -> None:
    mode = (aside / manifest.NAME).stat().st_mode
    for path in aside.iterdir():
        path.chmod(mode)  # files of safetensors may be read only by their owner
    # `final` exists only where it did not verify on every disk: a good step is not written again.
    if os.path.lexists(final):
        stale = aside.with_name(f"{_ASIDE}stale-{final.name}")
        os.replace(final, stale)
        durable_files.remove(stale)
    durable_files.rename_folder(aside, final)
