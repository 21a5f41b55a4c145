# SPDX-License-Identifier: Apache-2.0
"""Finding the checkpoint to resume from, and reading it: the newest step that the ranks together hold whole."""

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
    """The newest step of which every file is there and as its manifest says; None where none was ever completed.

    A corrupt step is passed over with one line to `warn`. Raises JobError where there are checkpoints but none that is
    whole: starting over would then throw away work that can perhaps be rescued.
    """
    # Every rank lists: a network disk may show the leader an old listing. It then looks a step up by name.
    listed = world.gather(world.agree(lambda: saved_steps(folder)))
    # A disk may be a step ahead of another that was killed before its first; two steps ahead means a loss.
    lost = max(map(len, listed)) > 1
    leaders = world.gather(disk.leader)
    for step in sorted({step for steps in listed for step in steps}, reverse=True):
        part, trouble = _verified_part(world, disk, folder, step, fingerprint)
        if trouble:
            warn(f"skipped a checkpoint: {trouble}")
        parts, troubles = zip(*world.gather((part, trouble)), strict=True)
        # Saved by another number of ranks and not whole: some of their disks are not here.
        lost = lost or any(troubles) or any(p and p.world_size != world.size for p in parts)
        holders = _holders(parts, leaders)
        if holders:
            return Found(step, holders)
    if lost:
        raise JobError(
            f"[train.restore] no checkpoint in {folder} is whole: restore the files that are missing or damaged, or "
            "start over with --fresh"
        )
    return None


def load_trainer(folder: Path, step: int) -> dict[str, Any]:
    """Rank 0's trainer state of a verified step."""
    return json.loads((step_folder(folder, step) / TRAINER).read_text())


def load_optimizer(folder: Path, step: int) -> Any:
    """Rank 0's optimizer state of a verified step."""
    return state_file.load_tree(step_folder(folder, step) / OPTIMIZER)


def load_rank_states(
    world: World, folder: Path, found: Found, *, of_all: bool = False
) -> dict[str, Any] | Iterator[dict[str, Any]]:
    """This rank's own state where the number of ranks is the same; else, or where those `of_all` are asked for, the
    states of all ranks that saved, in order, each of them read and sent when it is asked for.

    Called, and gone through, by all ranks together. Raises JobError.
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
    """Rank `source`'s tree of tensors and plain values on every rank; tensors travel as bytes, one at a time."""
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
    """What this disk holds of a step, on its leader; and what is wrong with it."""
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
    """For each rank that saved, a leader whose disk has its file; None where the parts do not make a whole.

    With the same number of ranks each of them reads its own file, from its own disk.
    """
    sizes = {part.world_size for part in parts if part}
    if parts[0] is None or len(sizes) != 1:  # rank 0's disk has model and optimizer
        return None
    size, holders = sizes.pop(), []
    for rank in range(size):
        readers = [leaders[rank]] if size == len(parts) else sorted(set(leaders))
        holder = next((r for r in readers if parts[r] and rank_file(rank, size) in parts[r].blobs), None)
        if holder is None:
            return None
        holders.append(holder)
    return tuple(holders)
