# SPDX-License-Identifier: Apache-2.0
"""Which ranks see the same `--out`: those of one machine or network disk do; separate hosts need not."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from octavo import durable_files
from octavo.train.launch.world import World


@dataclass(frozen=True)
class Disk:
    """The ranks that share this rank's `--out`. The lowest of them, the leader, does what is done once per disk."""

    rank: int
    members: tuple[int, ...]

    @property
    def leader(self) -> int:
        """The lowest rank on this disk."""
        return self.members[0]

    @property
    def is_leader(self) -> bool:
        """Whether this rank is the one that renames, prunes and truncates here."""
        return self.rank == self.leader

    @property
    def has_model(self) -> bool:
        """Whether rank 0, which holds model and optimizer, writes to this disk."""
        return self.leader == 0


def find_disk(world: World, folder: Path) -> Disk:
    """Creates `folder` and returns the ranks that see it: each rank creates a marker file, then looks for the others'.
    Raises JobError.

    A network disk may show a rank an old state of the folder. So markers are looked up by name, not in a listing, and
    the views of all ranks are joined: a marker that one rank has seen is there. Two ranks that each took themselves for
    the leader of one disk would remove what the other wrote.
    """
    nonce = world.from_main(uuid.uuid4().hex)
    marks = [folder / f".rank-{nonce}-{rank}" for rank in range(world.size)]
    try:
        world.agree(lambda: _leave_mark(folder, marks[world.rank]))
        views = world.gather(world.agree(lambda: [rank for rank, mark in enumerate(marks) if mark.exists()]))
    finally:
        with suppress(OSError):
            marks[world.rank].unlink()
    return Disk(world.rank, _joined(views, world.rank))


def _joined(views: Sequence[Sequence[int]], rank: int) -> tuple[int, ...]:
    """Returns all ranks that `rank` sees, or that see it, directly or through others. `views[r]`: the ranks that r has
    seen."""
    members = {rank}
    while True:
        seen = {other for member in members for other in views[member]}
        seers = {other for other, view in enumerate(views) if members.intersection(view)}
        if members >= seen | seers:
            return tuple(sorted(members))
        members |= seen | seers


def _leave_mark(folder: Path, mark: Path) -> None:
    try:
        durable_files.make_folder(folder)
        mark.touch()
    except OSError as error:
        raise ValueError(f"[train.shared_disk] --out {folder} {_trouble_with(folder, error)}") from error


def _trouble_with(folder: Path, error: OSError) -> str:
    """Returns why `folder` takes no file, to follow its name in a sentence."""
    if any(path.is_symlink() and not path.exists() for path in (folder, *folder.parents)):
        return "is a link to nothing, or is below one: make the folder that the link names, or name another"
    if isinstance(error, (FileExistsError, NotADirectoryError)):
        return "is a file, or is below one: name a folder"
    return f"cannot be written to: {error.strerror}"
