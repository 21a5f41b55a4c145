# SPDX-License-Identifier: Apache-2.0
"""`octavo bench`."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import octavo

app = typer.Typer(help="Measures this machine and Octavo on it, side by side.", no_args_is_help=True)

JsonFile = Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")]
Rounds = Annotated[int, typer.Option(min=1, help="How often each contender takes its turn.")]


@app.command()
def kernels(
    elements: Annotated[int, typer.Option(min=1024, help="Elements to pack and unpack.")] = 64 * 2**20,
    rounds: Rounds = 15,
    json_file: JsonFile = None,
) -> None:
    """Kernels against the memory bandwidth, NumPy and torch."""
    from octavo.bench import kernels as bench

    rows = bench.as_dicts(bench.bench(elements, rounds))
    _show(f"kernels, {octavo._C.isa()}", rows, json_file)


@app.command()
def ddp(
    plans: Annotated[list[str] | None, typer.Argument(help="Plans to measure.")] = None,
    nproc: Annotated[int, typer.Option(min=1, help="Local ranks; torchrun's own number counts instead.")] = 2,
    rounds: Rounds = 8,
    json_file: JsonFile = None,
) -> None:
    """A data-parallel step by plan, against torch's hooks and against no communication at all."""
    from octavo.bench import ddp as bench

    plans = plans or bench.DEFAULT_PLANS
    for plan in plans:
        try:
            octavo.Plan(plan)
        except ValueError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(2) from None
    if not bench.is_rank():
        options = [f"--rounds={rounds}", *([f"--json={json_file.absolute()}"] if json_file else [])]
        raise typer.Exit(bench.run_ranks(nproc, [*plans, *options]))
    rows = bench.bench(plans, rounds)
    if rows is not None:
        _show("a step of 25.2 M parameters", bench.as_dicts(rows), json_file)


def _show(title: str, rows: list[dict[str, object]], json_file: Path | None) -> None:
    table = Table(title=title)
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="left" if isinstance(rows[0][name], str) else "right")
    for row in rows:
        table.add_row(
            *[f"{v:,.2f}" if isinstance(v, float) else f"{v:,}" if isinstance(v, int) else str(v) for v in row.values()]
        )
    Console().print(table)
    if json_file is not None:
        json_file.write_text(json.dumps(rows, indent=2) + "\n")
