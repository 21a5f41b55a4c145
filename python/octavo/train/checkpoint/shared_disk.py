# SPDX-License-Identifier: Apache-2.0
"""Which ranks see the same `--out`: those of one machine or network disk do; separate hosts need not."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path

from octavo.train.launch.world import World


@dataclass(frozen=True)
class Disk:
    """The ranks that share this rank's `--out`. The lowest, the leader, does what is done once a disk."""

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
    """Creates `folder` and finds who else sees it: each rank leaves a mark, then looks. Raises JobError."""
    nonce = world.from_main(uuid.uuid4().hex)
    mark = folder / f".rank-{nonce}-{world.rank}"
    world.agree(lambda: _leave_mark(folder, mark))
    prefix = f".rank-{nonce}-"
    seen = world.agree(lambda: sorted(int(p.name.removeprefix(prefix)) for p in folder.glob(prefix + "*")))
    world.barrier()
    mark.unlink(missing_ok=True)
    return Disk(world.rank, tuple(seen))


def _leave_mark(folder: Path, mark: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        mark.touch()
    except OSError as error:
        raise ValueError(
            f"[train.shared_disk] expected a writable directory for --out, got {folder}: {error.strerror}"
        ) from error
