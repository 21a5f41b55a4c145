# SPDX-License-Identifier: Apache-2.0
"""`octavo bench`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, NoReturn

import torch
import typer
from rich.console import Console
from rich.table import Table

import octavo
from octavo.train.config import check_local_ranks, usable_cores

app = typer.Typer(
    help="Measures this machine and Octavo on it, side by side.", no_args_is_help=True, add_completion=False
)

JsonFile = Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")]
Rounds = Annotated[int, typer.Option(min=1, help="How often each contender takes its turn.")]


@app.command()
def kernels(
    device: Annotated[
        str | None, typer.Option(help="cpu, sycl, cuda or xpu: every kernel against a copy there.")
    ] = None,
    elements: Annotated[
        int | None,
        typer.Option(min=1024, help="Elements to pack and unpack.  [default: 64 M; of a device 1, 10, 100 M]"),
    ] = None,
    rounds: Rounds = 15,
    json_file: JsonFile = None,
) -> None:
    """Kernels against the memory bandwidth: the CPU's, NumPy and torch, or a device's."""
    from octavo.bench import kernels as bench

    _check_place(json_file)
    if device is None:
        rows, where = bench.bench(elements or 64 * 2**20, rounds), octavo._C.isa()
    else:
        sizes = bench.SIZES if elements is None else (elements,)
        rows, where = bench.bench_device(_device(device), sizes, rounds), device
    _show(f"kernels, {where}", bench.as_dicts(rows), bench.HEADINGS, json_file)


@app.command()
def ddp(
    plans: Annotated[
        list[str] | None,
        typer.Argument(
            help="Plans to measure: dense, bf16, int4+ef, sign+ef, ...", show_default="dense bf16 int4+ef sign+ef"
        ),
    ] = None,
    nproc: Annotated[int, typer.Option(min=1, help="Local ranks; torchrun's own number counts instead.")] = 2,
    rounds: Rounds = 8,
    json_file: JsonFile = None,
) -> None:
    """A data-parallel step by plan, against torch's hooks and against no communication at all."""
    from octavo.bench import ddp as bench

    plans = plans or bench.DEFAULT_PLANS
    if bench.is_main():
        _check_place(json_file)
    try:
        for plan in plans:
            octavo.Plan(plan)
        if not bench.is_rank():
            check_local_ranks(nproc, usable_cores())
    except ValueError as error:
        _refuse(error)
    if not bench.is_rank():
        options = [f"--rounds={rounds}", *([f"--json={json_file.absolute()}"] if json_file else [])]
        raise typer.Exit(bench.run_ranks(nproc, [*plans, *options]))
    rows = bench.bench(plans, rounds)
    if rows is not None:
        _show(
            "a step of 25.2 M parameters; alone: without communication", bench.as_dicts(rows), bench.HEADINGS, json_file
        )


def _device(name: str) -> torch.device:
    """The device to measure; refuses one that is not here, with the reason."""
    try:
        return octavo.accelerator.accelerator_named(name).device()
    except (ValueError, NotImplementedError) as reason:
        _refuse(reason)


def _refuse(error: object) -> NoReturn:
    typer.echo(f"error: {error}", err=True)
    raise typer.Exit(2)


def _check_place(json_file: Path | None) -> None:
    """Before the measurement, not after."""
    if json_file is None:
        return
    try:
        json_file.open("a").close()
    except OSError as error:
        _refuse(f"[bench] expected --json to name a file that can be written, got {json_file}: {error.strerror}")


def _show(title: str, rows: list[dict[str, object]], headings: Mapping[str, str], json_file: Path | None) -> None:
    table = Table(title=title)
    for name, heading in headings.items():
        table.add_column(heading, justify="left" if isinstance(rows[0][name], str) else "right", overflow="fold")
    for row in rows:
        table.add_row(*[_cell(row[name]) for name in headings])
    Console().print(table)
    if json_file is not None:
        json_file.write_text(json.dumps(rows, indent=2) + "\n")


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
