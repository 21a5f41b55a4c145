# SPDX-License-Identifier: Apache-2.0
"""How the commands of the benches measure, and what they print: tables, the file of `--json`, and errors in one
sentence with their exit code."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import typer
from rich.table import Table

from octavo.bench.linked_hosts import UNSHAPED
from octavo.bench.options import check_place, write_figures
from octavo.bench.ranks import is_main, is_rank
from octavo.console import make_console
from octavo.cores import check_local_ranks, usable_cores
from octavo.train.errors import EXIT_JOB, EXIT_USAGE

Measured = TypeVar("Measured")


@contextmanager
def errors_in_a_sentence(failures: tuple[type[Exception], ...] = (RuntimeError, OSError)) -> Iterator[None]:
    """Ends the command with one sentence: with exit code 2 for options that make no sense, with 1 for a job that
    fails, which raises one of ``failures``."""
    try:
        yield
    except ValueError as error:
        refuse(error)
    except failures as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_JOB) from None


def refuse(error: object) -> NoReturn:
    """Ends the command because its options make no sense."""
    typer.echo(f"error: {error}", err=True)
    raise typer.Exit(EXIT_USAGE)


def check_json_file(json_file: Path | None) -> None:
    """Ends the command where `--json FILE` cannot be written."""
    with errors_in_a_sentence():
        check_place(json_file)


def measured_by_ranks(
    as_rank: Callable[[], Measured],
    start: Callable[[], Measured],
    nproc: int,
    json_file: Path | None,
    check: Callable[[], object] = lambda: None,
) -> Measured:
    """Returns what `as_rank` measures where this process is a rank already, under torchrun, and otherwise what `start`
    measures with `nproc` ranks of its own. Ends the command first for what makes no sense; `check` raises ValueError
    for that."""
    if is_main():
        check_json_file(json_file)
    with errors_in_a_sentence():
        check()
        if is_rank():
            return as_rank()
        check_local_ranks(nproc, usable_cores())
        return start()


def dicts(rows: Iterable[Any]) -> list[dict[str, object]]:
    """Returns the rows of a bench, which are of its own dataclass, as dicts."""
    return [asdict(row) for row in rows]


def without_link(headings: Mapping[str, str], rows: Iterable[Any]) -> Mapping[str, str]:
    """Returns the headings, without the link's where everything is measured on this machine as it is."""
    shaped = any(row.link != UNSHAPED for row in rows)
    return headings if shaped else {name: heading for name, heading in headings.items() if name != "link"}


def show_last(measured: Iterable[list[Any] | None], show_rows: Callable[[list[Any]], None]) -> None:
    """Shows the last of these lists of rows, each of which has the rows of those before, also where what makes them
    fails or is interrupted: a job may have taken hours."""
    rows = None
    try:
        with errors_in_a_sentence():
            for rows in measured:  # noqa: B007 - the last one is used
                pass
    finally:
        if rows:
            show_rows(rows)


def show(
    title: str,
    rows: list[dict[str, object]],
    headings: Mapping[str, str],
    json_file: Path | None,
    remarks: Iterable[str] = (),
    text: str = "",
) -> None:
    """Writes the figures to `json_file`, as `text` where that is given, and prints them as a table, with remarks
    below."""
    table = Table(title=title)
    for name, heading in headings.items():
        is_text = isinstance(rows[0][name], str)
        table.add_column(heading, justify="left" if is_text else "right", no_wrap=not is_text, overflow="fold")
    for row in rows:
        table.add_row(*[_cell(name, row[name]) for name in headings])
    with errors_in_a_sentence():
        try:
            write_figures(json_file, text or json.dumps(rows, indent=2) + "\n")
        finally:  # where there is no room for the file, the table has the figures
            console = make_console()
            console.print(table)
            for remark in remarks:
                console.print(remark, highlight=False, markup=False, soft_wrap=True)


def _cell(name: str, value: object) -> str:
    if value is None:
        return "-"
    if name.endswith("_bytes"):
        return f"{float(str(value)) / 1e6:,.1f}"
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
