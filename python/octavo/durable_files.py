# SPDX-License-Identifier: Apache-2.0
"""Writes files that survive a power cut: each is written under another name, synced and renamed, and then its folder is
synced."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

_CHUNK_BYTES = 1 << 20


def sync_file(path: Path) -> None:
    """Returns once the bytes of `path` are on the disk. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(path: Path) -> None:
    """Returns once the names in `path` are on the disk. Before that a rename may be lost. Raises OSError."""
    sync_file(path)


def make_folder(path: Path) -> None:
    """Creates `path` and the parents that are missing. Returns once their names are on the disk, where the folders with
    these names may be read. Raises OSError."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        with suppress(PermissionError):  # a folder that may be written to, but not read
            sync_folder(folder.parent)


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Opens a new file, which takes the place of `path` once the body is done and its bytes are on the disk. Where the
    body raises, what was at `path` stays."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(aside, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sweep(path: Path) -> None:
    """Removes the new files that killed processes had opened by `replacing(path)`. Nobody may be writing `path`."""
    prefix = f".{path.name}."
    for aside in path.parent.iterdir():
        if aside.name.startswith(prefix) and aside.name.removeprefix(prefix).isdecimal():
            aside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes `path` as a whole or not at all."""
    with replacing(path) as file:
        file.write(text.encode())


def printable(name: str) -> str:
    """Returns the name of a file as text that can be written. A name that is not UTF-8 has bytes that cannot."""
    return os.fsencode(name).decode("utf-8", "replace")


def write_json(path: Path, value: Any) -> None:
    """Writes `value` as indented JSON, as a whole or not at all."""
    write_text(path, json_text(value))


def json_text(value: Any) -> str:
    """Returns the text that `write_json` writes."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def remove(path: Path) -> None:
    """Removes a folder with all that is in it, a file, or a link. What a link points to stays. Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def rename_folder(aside: Path, final: Path) -> None:
    """Gives the folder `aside`, which is on the disk, the name `final`; returns once that is on the disk, too.
    Both are in the same folder, and nothing but an empty folder may be at `final`. Raises OSError."""
    os.replace(aside, final)
    sync_folder(final.parent)


def point_link(link: Path, target: str) -> None:
    """Makes the symbolic link `link` point to `target`. An older link is replaced in one step. If a copy of the tree
    has turned the link into a folder, that folder is replaced."""
    aside = link.with_name(f".{link.name}.{os.getpid()}")
    copy = aside.with_name(f"{aside.name}.copy")
    aside.unlink(missing_ok=True)
    try:
        aside.symlink_to(target)
        if link.is_dir() and not link.is_symlink():
            os.replace(link, copy)
        os.replace(aside, link)
    except BaseException:
        aside.unlink(missing_ok=True)
        if copy.is_dir() and not link.exists():
            os.replace(copy, link)
        raise
    sync_folder(link.parent)
    shutil.rmtree(copy, ignore_errors=True)


def sha256(path: Path) -> str:
    """Returns the SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
