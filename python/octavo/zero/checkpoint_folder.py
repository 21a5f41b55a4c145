# SPDX-License-Identifier: Apache-2.0
"""The folder of an engine's checkpoints.

    DIRECTORY/latest -> saved-000002    what torch.distributed.checkpoint has written, and its digests

``sha256.json`` has the SHA-256 of each of these files: it shows whether their bytes have changed since.

A checkpoint is written under another name, synced, and renamed. Then the link is replaced, in one step, and the
checkpoint before is removed. A process that is killed at any moment leaves one of the two, whole.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from octavo import durable_files
from octavo.zero.all_or_none import by_first_rank, on_all_ranks
from octavo.zero.peers import Peers

_LATEST, _ASIDE, _DIGESTS = "latest", ".aside", "sha256.json"
_RESTORE = "restore the file, or continue from another checkpoint"


class CheckpointFolder:
    """``directory`` as all ranks use it, which call the methods together. Where something fails on a rank, all ranks
    raise what ``on_all_ranks`` does; ``where`` begins the sentence."""

    def __init__(self, directory: Path, peers: Peers, where: str):
        self._directory, self._peers, self._where = directory, peers, where
        self.newest = directory / _LATEST

    @contextmanager
    def writing(self) -> Iterator[Path]:
        """A context that gives the folder to write a checkpoint to. In the end it becomes the newest checkpoint, and
        older ones are removed; where something fails before, it is removed itself."""
        aside = self._directory / _ASIDE
        self._by_first_rank(lambda: self._prepare(aside), f"write to {self._directory}")
        try:
            yield aside
            self._write_digests(aside)
        except BaseException:
            if self._peers.rank == 0:
                shutil.rmtree(aside, ignore_errors=True)
            raise
        self._by_first_rank(lambda: self._publish(aside), f"give the checkpoint in {self._directory} its name")
        self._by_first_rank(self._remove_older, f"look for older checkpoints in {self._directory}")

    def require_whole(self) -> None:
        """Raises FileNotFoundError where there is no checkpoint, or where a file of it is missing; OSError, which names
        the ranks, where only some miss it. Raises ValueError where a file has other bytes than were written, also if
        only one rank has read it. A checkpoint without digests is taken as it is, with a warning."""
        on_all_ranks(self._require_own_share, self._where, f"read the checkpoint in {self._directory}", self._peers)

    def _by_first_rank(self, work: Callable[[], None], what: str) -> None:
        by_first_rank(work, self._where, what, self._peers)

    def _prepare(self, aside: Path) -> None:
        durable_files.make_folder(self._directory)
        shutil.rmtree(aside, ignore_errors=True)

    def _write_digests(self, aside: Path) -> None:
        what = f"write to {self._directory}"
        names: list[str] = []
        self._by_first_rank(lambda: names.extend(sorted(path.name for path in aside.iterdir())), what)
        names = self._peers.values(names, self._where)[0]

        def own_digests() -> dict[str, str]:
            if missing := [name for name in names if not (aside / name).is_file()]:
                raise FileNotFoundError(
                    f"[{self._where}] {aside / missing[0]} is not there, which rank 0 sees: is {self._directory} the "
                    f"same folder on all hosts?"
                )
            return self._own_digests(aside, names)

        own = on_all_ranks(own_digests, self._where, what, self._peers)
        of_all = {name: digest for one in self._peers.values(own, self._where) for name, digest in one.items()}
        self._by_first_rank(lambda: durable_files.write_json(aside / _DIGESTS, of_all), what)

    def _own_digests(self, folder: Path, names: Sequence[str]) -> dict[str, str]:
        """Returns the digests of this rank's share: every W-th file, whoever wrote it."""
        return {name: durable_files.sha256(folder / name) for name in names[self._peers.rank :: self._peers.size]}

    def _require_own_share(self) -> None:
        if not self.newest.is_dir():
            raise FileNotFoundError(
                f"[{self._where}] there is no checkpoint in {self._directory}: expected a folder to which "
                f"save_checkpoint has written, with a link '{_LATEST}' to the newest one"
            )
        digests = self.newest / _DIGESTS
        if not digests.is_file():
            warnings.warn(
                f"[{self._where}] {digests} is missing, so that damaged files would not be noticed", stacklevel=6
            )
            return
        written = self._written_digests(digests)
        if missing := [name for name in sorted(written) if not (self.newest / name).is_file()]:
            raise FileNotFoundError(f"[{self._where}] {self.newest / missing[0]} is missing: {_RESTORE}")
        for name, digest in self._own_digests(self.newest, sorted(written)).items():
            if written[name] != digest:
                raise ValueError(
                    f"[{self._where}] {self.newest / name} is damaged: its bytes are not those that were written; "
                    f"{_RESTORE}"
                )

    def _written_digests(self, digests: Path) -> dict[str, str]:
        try:
            written = json.loads(digests.read_text())
            if unknown := sorted({path.name for path in self.newest.glob("*.distcp")} - set(written)):
                raise ValueError(f"it has no digest of {unknown[0]}")
        except (ValueError, TypeError) as error:
            raise ValueError(f"[{self._where}] {digests} is damaged: {error}; {_RESTORE}") from error
        return written

    def _publish(self, aside: Path) -> None:
        last = max((int(path.name.removeprefix("saved-")) for path in self._saves()), default=0)
        final = self._directory / f"saved-{last + 1:06d}"
        durable_files.sync_folder(aside)
        durable_files.rename_folder(aside, final)
        durable_files.point_link(self.newest, final.name)

    def _remove_older(self) -> None:
        """Removes all checkpoints but the newest. That one is complete by now, so a failure is a warning and no
        error."""
        newest = self._directory / os.readlink(self.newest)
        for path in self._saves():
            if path == newest:
                continue
            try:
                if path.is_symlink():
                    path.unlink()
                else:
                    shutil.rmtree(path)
            except OSError as error:
                warnings.warn(
                    f"[{self._where}] {path} is no longer needed and cannot be removed: {error}", stacklevel=9
                )

    def _saves(self) -> list[Path]:
        return list(self._directory.glob("saved-" + "[0-9]" * 6))
