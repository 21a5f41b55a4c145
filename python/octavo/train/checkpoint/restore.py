# SPDX-License-Identifier: Apache-2.0
"""Finds the checkpoint to resume from, and reads it: the newest step that the ranks together hold whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from octavo.train.checkpoint import manifest, state_file
from octavo.train.checkpoint.manifest import Corrupt, Manifest
from octavo.train.checkpoint.shared_disk import Disk
from octavo.train.checkpoint.writer import MODEL, OPTIMIZER, TRAINER, rank_file, saved_steps, step_folder
from octavo.train.errors import JobError
from octavo.train.launch.world import World


@dataclass(frozen=True)
class Found:
    """A checkpoint that the ranks together hold whole. `holders[r]`: the rank that reads what rank r saved."""

    step: int
    holders: tuple[int, ...]

    @property
    def world_size(self) -> int:
        """The number of ranks that saved it, which need not be that of this run."""
        return len(self.holders)


def newest_checkpoint(
    world: World, disk: Disk, folder: Path, fingerprint: str, warn: Callable[[str], None]
) -> Found | None:
    """Returns the newest step whose files are all there and match its manifest; None where no step was ever completed.

    A corrupt step is skipped with one line to `warn`. Raises JobError where there are checkpoints but none that is
    whole: starting over would then throw away work that can perhaps be rescued.
    """
    # Every rank lists, because a network disk may show the leader an old listing. The leader then looks a step up by
    # name.
    listed = world.gather(world.agree(lambda: saved_steps(folder)))
    # One disk may have one step where another was killed before its first. More than one step means a loss.
    lost = max(map(len, listed)) > 1
    leaders = world.gather(disk.leader)
    for step in sorted({step for steps in listed for step in steps}, reverse=True):
        part, trouble = _verified_part(world, disk, folder, step, fingerprint)
        if trouble:
            warn(f"skipped a checkpoint: {trouble}")
        parts, troubles = zip(*world.gather((part, trouble)), strict=True)
        # A step of another number of ranks that is not whole: some of their disks are not here.
        lost = lost or any(troubles) or any(p and p.world_size != world.size for p in parts)
        holders = _holders(parts, leaders)
        if holders:
            return Found(step, holders)
    if lost:
        raise JobError(
            f"[train.restore] no checkpoint in {folder} is both whole and of this run: put back the files that this "
            "run has written, or start over with --fresh"
        )
    return None


def load_trainer(folder: Path, step: int) -> dict[str, Any]:
    """Returns rank 0's trainer state of a verified step."""
    return json.loads((step_folder(folder, step) / TRAINER).read_text())


def load_optimizer(folder: Path, step: int) -> Any:
    """Returns rank 0's optimizer state of a verified step."""
    return state_file.load_tree(step_folder(folder, step) / OPTIMIZER)


def load_rank_states(
    world: World, folder: Path, found: Found, *, of_all: bool = False
) -> dict[str, Any] | Iterator[dict[str, Any]]:
    """Returns this rank's own state where the number of ranks is the same. Otherwise, or with `of_all`, returns the
    states of all ranks that saved, in order; each of them is read and sent when it is asked for.

    All ranks call it, and go through the states, together. Raises JobError.
    """

    def load(rank: int) -> Any:
        return state_file.load_tree(step_folder(folder, found.step) / rank_file(rank, found.world_size))

    if found.world_size == world.size and not of_all:
        return world.agree(lambda: load(world.rank))
    return _each_rank_state(world, found, load)


def _each_rank_state(world: World, found: Found, load: Callable[[int], Any]) -> Iterator[dict[str, Any]]:
    for rank, holder in enumerate(found.holders):
        state = world.agree(lambda rank=rank, holder=holder: load(rank) if world.rank == holder else None)
        yield broadcast_tree(world, state, holder)


def broadcast_tree(world: World, value: Any, source: int) -> Any:
    """Returns rank `source`'s tree of tensors and plain values on every rank. Tensors are sent as bytes, one at a
    time."""
    tensors, skeleton = state_file.pack(value) if world.rank == source else ({}, None)
    shapes = {name: (tuple(t.shape), t.dtype) for name, t in tensors.items()}
    skeleton, shapes = world.from_rank((skeleton, shapes), source)
    for name, (shape, dtype) in shapes.items():
        if world.rank != source:
            tensors[name] = torch.empty(shape, dtype=dtype)
        if tensors[name].numel():
            dist.broadcast(tensors[name].view(-1).view(torch.uint8), src=source)
    return state_file.unpack(tensors, skeleton)


def _verified_part(
    world: World, disk: Disk, folder: Path, step: int, fingerprint: str
) -> tuple[Manifest | None, str | None]:
    """Returns what this disk holds of a step, and what is wrong with it, on the disk's leader. Returns None twice on
    other ranks, and where the step has no folder here."""
    path = step_folder(folder, step)
    if not disk.is_leader or not path.is_dir():
        return None, None
    try:
        part = manifest.verify(path)
        if (part.step, part.fingerprint) != (step, fingerprint):
            raise Corrupt(f"{path} belongs to another run")
        expected = [MODEL, OPTIMIZER, TRAINER] if disk.has_model else []
        if part.world_size == world.size:  # each rank then reads its own file
            expected += [rank_file(rank, world.size) for rank in disk.members]
        missing = [name for name in expected if name not in part.blobs]
        if missing:
            raise Corrupt(f"{path} lacks {missing[0]}")
        return part, None
    except Corrupt as error:
        return None, str(error)


def _holders(parts: Sequence[Manifest | None], leaders: Sequence[int]) -> tuple[int, ...] | None:
    """Returns for each rank that saved a leader whose disk has its file; None where the parts do not make a whole.

    With the same number of ranks each rank reads its own file, from its own disk.
    """
    sizes = {part.world_size for part in parts if part}
    if parts[0] is None or len(sizes) != 1:  # rank 0's disk must have its part: model and optimizer are in it
        return None
    size, holders = sizes.pop(), []
    for rank in range(size):
        readers = [leaders[rank]] if size == len(parts) else sorted(set(leaders))
        holder = next((r for r in readers if parts[r] and rank_file(rank, size) in parts[r].blobs), None)
        if holder is None:
            return None
        holders.append(holder)
    return tuple(holders)
