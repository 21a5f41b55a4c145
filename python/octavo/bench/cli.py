# SPDX-License-Identifier: Apache-2.0
"""The commands of `octavo bench`, and `octavo advise`."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NoReturn

import torch
import typer
from rich.table import Table

import octavo
from octavo.bench.hosts import RATES, UNSHAPED
from octavo.bench.options import JsonFile, Unlinked, check_place, write_figures
from octavo.bench.quality.cli import quality
from octavo.bench.timing import check_words, is_wanted
from octavo.bench.torch_hooks import DEFAULT as DEFAULT_HOOKS
from octavo.bench.torch_hooks import DOUBTFUL
from octavo.console import make_console
from octavo.cores import check_local_ranks, usable_cores

app = typer.Typer(
    help="Measures this machine and Octavo on it, side by side.", no_args_is_help=True, add_completion=False
)

app.command()(quality)

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


@app.command()
def kernels(
    groups: Annotated[
        list[str] | None,
        typer.Argument(
            help="bits, codecs, selections, blocks, sketch, owner or steps; on a device bits, codecs or steps.",
            show_default="all",
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, sycl, cuda or xpu: every kernel against a copy there.")
    ] = None,
    elements: Annotated[
        int | None,
        typer.Option(min=1024, help="Elements to pack and unpack.  [default: 64 M; on a device 1, 10 and 100 M]"),
    ] = None,
    rounds: Rounds = 15,
    link: Unlinked = None,
    json_file: JsonFile = None,
) -> None:
    """Measure kernels: on the CPU against the memory bandwidth, NumPy and torch, on a device against a copy."""
    from octavo.bench import kernels as bench

    _check_place(json_file)
    place = None if device is None else _device(device)
    with _errors_in_a_sentence():
        if place is None:
            rows, where = bench.bench(elements or 64 * 2**20, rounds, groups or ()), octavo._C.isa()
        else:
            sizes = bench.SIZES if elements is None else (elements,)
            rows, where = bench.bench_device(place, sizes, rounds, groups or ()), device
    if not rows:
        _refuse("[bench.kernels] blocks are measured against bitsandbytes: pip install bitsandbytes installs it")
    _show(f"kernels, {where}", _dicts(rows), bench.HEADINGS, json_file)


@app.command()
def ddp(
    plans: Annotated[
        list[str] | None,
        typer.Argument(
            help=f"Plans (dense, bf16, int4+ef, ...), rounds of local steps (outer:20/sign+ef) and torch's own "
            f"hooks ({', '.join(DOUBTFUL)}).",
            show_default="dense bf16 int4+ef sign+ef torch-powersgd:4 torch-int8",
        ),
    ] = None,
    nproc: Nproc = 2,
    rows: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Rows (tokens) per step and rank; may be repeated.", show_default="4"),
    ] = None,
    layers: Annotated[int, typer.Option(min=1, help="Linear layers of the model.")] = 24,
    width: Annotated[int, typer.Option(min=1, max=1 << 20, help="Inputs and outputs of each layer.")] = 1024,
    link: Links = None,
    rounds: Rounds = 8,
    json_file: JsonFile = None,
) -> None:
    """Measure a data-parallel step by plan, by link and by tokens per step, against torch's hooks and against no
    communication."""
    from octavo.bench import ddp as bench
    from octavo.bench import ddp_jobs
    from octavo.bench.jobs import check_links
    from octavo.bench.ranks import is_main, is_rank

    sizes = [bench.Size(count, layers, width) for count in rows or [4]]
    contenders = plans or [*bench.DEFAULT_PLANS, *([] if is_rank() else DEFAULT_HOOKS)]
    if is_main():
        _check_place(json_file)
    with _errors_in_a_sentence():
        check_links(link or [None])
        if is_rank():
            report = json_file if is_main() else None
            measured = [ddp_jobs.measure_as_rank(contenders, rounds=rounds, sizes=sizes, report=report)]
        else:
            check_local_ranks(nproc, usable_cores())
            links = link or [None]
            measured = ddp_jobs.measure(contenders, nproc=nproc, rounds=rounds, sizes=sizes, links=links)

    def show(rows: list[bench.Row]) -> None:
        title = f"a step of {sizes[0].parameters / 1e6:.1f} M parameters; alone: without communication"
        remarks = [f"{row.plan}: {row.remark}" for row in rows if row.remark]
        _show(title, _dicts(rows), _without_link(bench.HEADINGS, rows), json_file, remarks)

    _show_last(measured, show)


@app.command()
def zero(
    contenders: Annotated[
        list[str] | None,
        typer.Argument(
            help="ddp, torch-zero1 (ZeroRedundancyOptimizer) and fsdp2 of torch; zero1, zero2 or zero3 of Octavo, "
            "compiled or not, with a codec of parameters and a plan of gradients, as in "
            "zero3-compiled:int8/int4+ef. ddp is always among those whose time is measured.",
            show_default="ddp torch-zero1 fsdp2 zero1 zero2 zero3 zero1-compiled zero3-compiled zero2:int8/int8+ef "
            "zero3:int8/int4+ef",
        ),
    ] = None,
    nproc: Nproc = 2,
    model: Annotated[
        str, typer.Option(help="llama-34m, tiny, small, 220m or the CONFIG.json of a LLaMA.")
    ] = "llama-34m",
    measure: Annotated[
        str,
        typer.Option(
            help="time: all contenders in turns, in one set of processes; memory: each in processes of its own; both."
        ),
    ] = "both",
    link: Links = None,
    rounds: Rounds = 8,
    json_file: JsonFile = None,
) -> None:
    """Measure a step of a language model by ZeRO, Octavo's and torch's, beside DDP: its time and the memory of a
    rank."""
    from octavo.bench import zero as bench
    from octavo.bench import zero_jobs
    from octavo.bench.ranks import is_main, is_rank

    names, links = contenders or bench.DEFAULT_CONTENDERS, link or [None]
    if is_main():
        _check_place(json_file)
    with _errors_in_a_sentence():
        zero_jobs.check(names, model, links, measure)
        if is_rank():
            measured = [zero_jobs.measure_as_rank(names, rounds=rounds, model=model, what=measure)]
        else:
            check_local_ranks(nproc, usable_cores())
            options = dict(nproc=nproc, rounds=rounds, model=model, links=links, what=measure)
            measured = zero_jobs.measure(names, **options)

    def show(rows: list[bench.Row]) -> None:
        _show(bench.title(model, rows[0]), _dicts(rows), _without_link(bench.HEADINGS, rows), json_file)

    _show_last(measured, show)


@app.command()
def allreduce(
    plans: Annotated[
        list[str] | None,
        typer.Argument(help="Plans without error feedback.", show_default="dense bf16 int8 int4 sign"),
    ] = None,
    nproc: Nproc = 2,
    kib: Annotated[
        list[int] | None,
        typer.Option(
            min=1, help="Size of the tensor in KiB; may be repeated.", show_default="64, 1024, 16384 and 65536"
        ),
    ] = None,
    link: Links = None,
    rounds: Rounds = 15,
    json_file: JsonFile = None,
) -> None:
    """Measure octavo.all_reduce of a float32 tensor by plan, by link and by size, against
    torch.distributed.all_reduce."""
    from octavo.bench import allreduce as bench
    from octavo.bench.ranks import is_main, is_rank

    wanted, links, sizes_kib = plans or bench.DEFAULT_PLANS, link or [None], kib or bench.SIZES_KIB
    if is_main():
        _check_place(json_file)
    with _errors_in_a_sentence():
        bench.check(wanted, links)
        if is_rank():
            measured = [bench.measure_as_rank(wanted, rounds=rounds, sizes_kib=sizes_kib)]
        else:
            check_local_ranks(nproc, usable_cores())
            measured = bench.measure(wanted, nproc=nproc, rounds=rounds, sizes_kib=sizes_kib, links=links)

    def show(rows: list[bench.Row]) -> None:
        _show("all-reduce of one tensor", _dicts(rows), _without_link(bench.HEADINGS, rows), json_file)

    _show_last(measured, show)


@app.command()
def host(
    nproc: Annotated[int, typer.Option(min=2, help="Local ranks; torchrun's own number counts instead.")] = 2,
    rounds: Rounds = 25,
    json_file: JsonFile = None,
) -> None:
    """Measure collectives between ranks of one host: through memory that they share, against Gloo's loopback."""
    from octavo.bench import host as bench
    from octavo.bench import jobs
    from octavo.bench.ranks import is_main, is_rank

    if is_main():
        _check_place(json_file)
    with _errors_in_a_sentence():
        if is_rank():
            rows = bench.bench(rounds)
        else:
            check_local_ranks(nproc, usable_cores())
            rows = bench.as_rows(jobs.run_job(["bench", "host", f"--rounds={rounds}"], nproc, None))
    if rows is not None:
        _show("collectives of ranks of one host", _dicts(rows), bench.HEADINGS, json_file)


@app.command()
def optim(
    words: Words = None,
    elements: Annotated[
        int,
        typer.Option(
            min=1024, help="Number of parameters: one matrix has half of them, the layers of a model the rest."
        ),
    ] = 26_000_000,
    dtype: Annotated[str, typer.Option(help="Dtype of parameters and gradients: float32 or bfloat16.")] = "float32",
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of every contender.", show_default="torch's own number")
    ] = None,
    rounds: Rounds = 15,
    link: Unlinked = None,
    json_file: JsonFile = None,
) -> None:
    """Measure a step of torch's optimizers, of Octavo's, and of bitsandbytes', torchao's and DeepSpeed's where they are
    installed, on the CPU: time, bytes of state, and speed against a copy."""
    from octavo.bench import optim as bench

    if dtype not in bench.DTYPES:
        _refuse(f"[bench.optim] --dtype must be {' or '.join(bench.DTYPES)}, not '{dtype}'")
    _check_place(json_file)
    with _errors_in_a_sentence():
        report = bench.bench(elements, bench.DTYPES[dtype], rounds, threads, words or ())
    title = f"a step of {elements / 1e6:.1f} M parameters, {dtype}, {report.rows[0].threads} threads, {octavo._C.isa()}"
    _show(title, _dicts(report.rows), bench.HEADINGS, json_file, report.remarks)


@app.command()
def memory(
    words: Words = None,
    model: Annotated[str, typer.Option(help="tiny, small or 220m.")] = "220m",
    device: Annotated[str | None, typer.Option(help="sycl or cpu.", show_default="sycl where it is there")] = None,
    limit: Annotated[
        float | None,
        typer.Option(min=1, help="Memory of the device in MiB; a contender that does not fit is named, not measured."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps, each on 2 x 128 tokens.")] = 5,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Layers keep only their inputs and are computed again in backward.")
    ] = False,
    link: Unlinked = None,
    json_file: JsonFile = None,
) -> None:
    """Measure the memory that training in bfloat16 takes with each optimizer, on the device and beside it."""
    from octavo.bench import memory as bench

    _check_place(json_file)
    with _errors_in_a_sentence():
        check_words("bench.memory", words or (), bench.CASES)
        cases = [case for case in bench.CASES if case == bench.BASELINE or is_wanted(words or (), case)]
        rows = bench.measure(model, device, limit_mib=limit, steps=steps, recompute=recompute, cases=cases)
    _show(bench.title(model, rows), _dicts(rows), bench.HEADINGS, json_file)


advise_app = typer.Typer(add_completion=False)


@advise_app.command()
def advise(
    plans: Annotated[
        list[str] | None,
        typer.Argument(
            help="Plans to choose from.",
            show_default="dense bf16 int8+ef int4+ef sign+ef topk:0.01+ef outer:20/sign+ef",
        ),
    ] = None,
    nproc: Annotated[int, typer.Option(min=2, help="Local ranks; torchrun's own number counts instead.")] = 2,
    rows: Annotated[int, typer.Option(min=1, help="Rows (tokens) per step and rank.")] = 4,
    layers: Annotated[int, typer.Option(min=1, help="Linear layers of the model.")] = 24,
    width: Annotated[int, typer.Option(min=1, max=1 << 20, help="Inputs and outputs of each layer.")] = 1024,
    link: Annotated[
        str | None,
        typer.Option(
            help=f"{', '.join(RATES)}: ranks on hosts of their own, joined at this rate. Needs root.",
            show_default="this machine as it is",
        ),
    ] = None,
    rounds: Rounds = 5,
    json_file: JsonFile = None,
) -> None:
    """Measure this machine and its link, and say which plan is fastest here, or "dense" where dense is.

    Under torchrun on the hosts of a job it measures their link. `--rows` should match your training most closely: the
    more tokens a step has, the more of the exchange is hidden behind computing.
    """
    from octavo.bench import advise as bench
    from octavo.bench.ddp import Size
    from octavo.bench.ddp_jobs import check_plans
    from octavo.bench.jobs import check_links
    from octavo.bench.ranks import is_main, is_rank

    size, wanted = Size(rows, layers, width), plans or bench.DEFAULT_PLANS
    if is_main():
        _check_place(json_file)
    with _errors_in_a_sentence():
        check_plans(wanted)
        check_links([link])
        if is_rank():
            report = bench.measure_as_rank(wanted, rounds=rounds, size=size)
        else:
            check_local_ranks(nproc, usable_cores())
            report = bench.measure(wanted, nproc=nproc, rounds=rounds, size=size, link=link)
    if report is None:
        return
    title = f"a step of {size.parameters / 1e6:.1f} M parameters on {report.ranks} ranks; alone: without communication"
    _show(title, bench.as_dicts(report), bench.HEADINGS, json_file, bench.sentences(report), report.text())


def _device(name: str) -> torch.device:
    """Returns the device to measure. Refuses one that is not here, with the reason."""
    try:
        return octavo.accelerator.accelerator_named(name).device()
    except (ValueError, NotImplementedError) as reason:
        _refuse(reason)


@contextmanager
def _errors_in_a_sentence() -> Iterator[None]:
    """Ends the command with one sentence: with exit code 2 for options that make no sense, with 1 for a job that
    fails."""
    try:
        yield
    except ValueError as error:
        _refuse(error)
    except (RuntimeError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


def _refuse(error: object) -> NoReturn:
    typer.echo(f"error: {error}", err=True)
    raise typer.Exit(2)


def _check_place(json_file: Path | None) -> None:
    with _errors_in_a_sentence():
        check_place(json_file)


def _dicts(rows: Iterable[Any]) -> list[dict[str, object]]:
    """Returns the rows of a bench, which are of its own dataclass, as dicts."""
    return [asdict(row) for row in rows]


def _without_link(headings: Mapping[str, str], rows: Iterable[Any]) -> Mapping[str, str]:
    """Returns the headings, without the link's where everything is measured on this machine as it is."""
    shaped = any(row.link != UNSHAPED for row in rows)
    return headings if shaped else {name: heading for name, heading in headings.items() if name != "link"}


def _show_last(measured: Iterable[list[Any] | None], show: Callable[[list[Any]], None]) -> None:
    """Shows the last of these lists of rows, each of which has the rows of those before, also where what makes them
    fails or is interrupted: a job may have taken hours."""
    rows = None
    try:
        with _errors_in_a_sentence():
            for rows in measured:  # noqa: B007 - the last one is used
                pass
    finally:
        if rows:
            show(rows)


def _show(
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
    with _errors_in_a_sentence():
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
