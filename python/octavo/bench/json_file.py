# SPDX-License-Identifier: Apache-2.0
"""`--json FILE` of every bench."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

JsonFile = Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")]


def check_place(json_file: Path | None) -> None:
    """Raises ValueError where it cannot be written: before the measurement, not after."""
    if json_file is None:
        return
    try:
        is_new = not json_file.exists()
        json_file.open("a").close()
        if is_new:
            json_file.unlink()  # who is interrupted leaves no empty file
    except OSError as error:
        raise ValueError(f"[bench] --json {json_file} cannot be written: {error.strerror}") from error
