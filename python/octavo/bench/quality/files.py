# SPDX-License-Identifier: Apache-2.0
"""Files that are there as a whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Writes `path`, and the folders that it needs, so that no reader sees a part of it. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, path)


def write_json(path: Path, value: object) -> None:
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")
