# SPDX-License-Identifier: Apache-2.0
"""`manifest.json`: which files make up a checkpoint, and what they must look like.

    {"schema": 1, "step": 100, "world_size": 2, "fingerprint": "…",
     "blobs": {"model.safetensors": {"bytes": 5320000, "sha256": "…"}, …}, "sha256": "…"}

The last entry is the SHA-256 of the rest (JSON, sorted keys, no spaces). The file must also be written as
`durable_files.json_text` writes, so that any flipped bit in it shows.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo import durable_files

SCHEMA = 1
NAME = "manifest.json"


class Corrupt(ValueError):
    """A checkpoint that must not be loaded; the message names the file and what is wrong with it."""


@dataclass(frozen=True)
class Manifest:
    """What a verified checkpoint says about itself."""

    step: int
    world_size: int
    fingerprint: str
    blobs: dict[str, dict[str, Any]]


def write(folder: Path, step: int, world_size: int, fingerprint: str) -> None:
    """Lists every file of `folder` in a manifest, and fsyncs these files, the manifest and the folder."""
    blobs = {}
    for path in sorted(folder.iterdir()):
        durable_files.sync_file(path)
        blobs[path.name] = {"bytes": path.stat().st_size, "sha256": durable_files.sha256(path)}
    body = dict(schema=SCHEMA, step=step, world_size=world_size, fingerprint=fingerprint, blobs=blobs)
    durable_files.write_json(folder / NAME, {**body, "sha256": _digest(body)})


def verify(folder: Path) -> Manifest:
    """Reads the manifest of `folder` and checks every byte of the files that it lists. Raises Corrupt."""
    manifest = _read(folder / NAME)
    for name, blob in manifest.blobs.items():
        _check_blob(folder / name, blob)
    return manifest


def _read(path: Path) -> Manifest:
    try:
        content = path.read_bytes()
        body = json.loads(content)
        whole = durable_files.json_text(body).encode() == content
        if body.pop("sha256") != _digest(body) or not whole:
            raise Corrupt(f"{path} does not match its own checksum")
        if body["schema"] != SCHEMA:
            raise Corrupt(f"{path} has schema {body['schema']}, this version reads {SCHEMA}")
        return Manifest(body["step"], body["world_size"], body["fingerprint"], body["blobs"])
    except OSError as error:
        raise Corrupt(f"{path} cannot be read: {error.strerror}") from error
    except Corrupt:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(f"{path} is not a manifest") from error


def _check_blob(path: Path, blob: dict[str, Any]) -> None:
    try:
        size = path.stat().st_size
        if size != blob["bytes"]:
            raise Corrupt(f"{path} has {size} bytes instead of {blob['bytes']}")
        if durable_files.sha256(path) != blob["sha256"]:
            raise Corrupt(f"{path} does not match its checksum")
    except OSError as error:
        raise Corrupt(f"{path} cannot be read: {error.strerror}") from error


def _digest(body: dict[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
