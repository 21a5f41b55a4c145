# SPDX-License-Identifier: Apache-2.0
"""The option `--json FILE` of every bench."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

JsonFile = Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")]


def check_place(json_file: Path | None) -> None:
    """Raises ValueError where the file cannot be written. It is called before the measurement, so that none is lost."""
    if json_file is None:
        return
    try:
        is_new = not json_file.exists()
        json_file.open("a").close()
        if is_new:
            json_file.unlink()  # an interrupted bench leaves no empty file
    except OSError as error:
        raise ValueError(f"[bench] --json {json_file} cannot be written: {error.strerror}") from error
