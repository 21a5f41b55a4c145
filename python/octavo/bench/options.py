# SPDX-License-Identifier: Apache-2.0
"""The arguments and options that several benches share, and the file of `--json`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from octavo import durable_files
from octavo.bench.linked_hosts import RATES

Nproc = Annotated[int, typer.Option(min=1, help="Local ranks; torchrun's own number counts instead.")]
Links = Annotated[
    list[str] | None,
    typer.Option(
        "--link",
        help=f"{', '.join(RATES)}: ranks on hosts of their own, joined at this rate; may be repeated. Needs root.",
        show_default="this machine as it is",
    ),
]
Words = Annotated[
    list[str] | None,
    typer.Argument(
        help="Parts of names, such as adamw8bit or paged: measure only contenders that have one of them.",
        show_default="all",
    ),
]
Rounds = Annotated[int, typer.Option(min=1, help="How often each contender is measured, in turns.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")]


def say_unlinked(rates: list[str] | None) -> list[str] | None:
    """Says, where there are rates of `--link`, that they change nothing. Raises BadParameter for what is no rate."""
    for rate in rates or ():
        if rate not in RATES:
            raise typer.BadParameter(f"expected one of {', '.join(RATES)}, got '{rate}'")
    if rates:
        typer.echo("--link has no effect: this bench measures nothing that is sent between hosts", err=True)
    return rates


Unlinked = Annotated[
    list[str] | None,
    typer.Option("--link", callback=say_unlinked, help="Has no effect: nothing is sent between hosts."),
]


def check_place(json_file: Path | None) -> None:
    """Raises ValueError where the file cannot be opened. It is called before the measurement, so that none is lost."""
    if json_file is None:
        return
    try:
        is_new = not json_file.exists()
        json_file.open("a").close()
        if is_new:
            json_file.unlink()  # an interrupted bench leaves no empty file
    except OSError as error:
        raise ValueError(f"[bench.options] --json {json_file} cannot be written: {error.strerror}") from error


def write_figures(json_file: Path | None, text: str) -> None:
    """Writes the figures to the file of `--json`, if there is one. Raises OSError, on a full disk for example."""
    if json_file is None:
        return
    try:
        write_file(json_file, text)
    except OSError as error:
        raise OSError(
            f"[bench.options] --json {json_file} cannot be written: {error.strerror}; the table has the figures, and "
            f"another file may have room for them"
        ) from error


def write_file(path: Path, text: str) -> None:
    """Writes `path` as a whole or not at all where it can be replaced, and in place otherwise. Raises OSError."""
    if _can_be_replaced(path):
        durable_files.write_text(path, text)
    else:
        path.write_text(text, encoding="utf-8")


def _can_be_replaced(path: Path) -> bool:
    """Whether `path` is new or a regular file, in a folder that takes another one beside it. A link such as
    /dev/stdout, a pipe or a device must stay what it is."""
    is_plain = not path.is_symlink() and (path.is_file() or not path.exists())
    return is_plain and os.access(path.parent, os.W_OK)
