# SPDX-License-Identifier: Apache-2.0
"""The commands of `octavo bench`."""

from typing import Annotated

import torch
import typer

import octavo
from octavo.bench import defaults
from octavo.bench.options import JsonFile, Links, Nproc, Rounds, Unlinked, Words, say_unlinked
from octavo.bench.output import (
    check_json_file,
    dicts,
    errors_in_a_sentence,
    measured_by_ranks,
    refuse,
    show,
    show_last,
    without_link,
)
from octavo.bench.quality.cli import quality
from octavo.bench.timing import check_words, is_wanted
from octavo.bench.torch_hooks import DOUBTFUL
from octavo.train.model_sizes import MODELS
from octavo.train.options import either

app = typer.Typer(
    help="Measures this machine and Octavo on it, side by side.", no_args_is_help=True, add_completion=False
)

app.command()(quality)


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

    check_json_file(json_file)
    place = None if device is None else _device(device)
    with errors_in_a_sentence():
        if place is None:
            rows, where = bench.bench(elements or 64 * 2**20, rounds, groups or ()), octavo._C.isa()
        else:
            sizes = bench.SIZES if elements is None else (elements,)
            rows, where = bench.bench_device(place, sizes, rounds, groups or ()), device
    if not rows:
        refuse("[bench.kernels] blocks are measured against bitsandbytes: pip install bitsandbytes installs it")
    show(f"kernels, {where}", dicts(rows), bench.HEADINGS, json_file)


@app.command()
def ddp(
    plans: Annotated[
        list[str] | None,
        typer.Argument(
            help=f"Plans (dense, bf16, int4+ef, ...), rounds of local steps (outer:20/sign+ef) and torch's own "
            f"hooks ({', '.join(DOUBTFUL)}).",
            show_default=" ".join((*defaults.DDP_PLANS, *defaults.DDP_HOOKS)),
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

    links, sizes = link or [None], [bench.Size(count, layers, width) for count in rows or [4]]
    contenders = plans or [*defaults.DDP_PLANS, *([] if is_rank() else defaults.DDP_HOOKS)]
    options, report = dict(rounds=rounds, sizes=sizes), json_file if is_main() else None
    measured = measured_by_ranks(
        lambda: [ddp_jobs.measure_as_rank(contenders, **options, report=report)],
        lambda: ddp_jobs.measure(contenders, **options, nproc=nproc, links=links),
        nproc,
        json_file,
        lambda: check_links(links),
    )

    def show_rows(rows: list[bench.Row]) -> None:
        title = f"a step of {sizes[0].parameters / 1e6:.1f} M parameters; alone: without communication"
        remarks = [f"{row.plan}: {row.remark}" for row in rows if row.remark]
        show(title, dicts(rows), without_link(bench.HEADINGS, rows), json_file, remarks)

    show_last(measured, show_rows)


@app.command()
def zero(
    contenders: Annotated[
        list[str] | None,
        typer.Argument(
            help="ddp, torch-zero1 (ZeroRedundancyOptimizer) and fsdp2 of torch, also as ddp-compiled, fsdp2-compiled "
            "and fsdp2:keep (reshard_after_forward=False); zero1, zero2 or zero3 of Octavo, compiled or not, with a "
            "codec of parameters and a plan of gradients, as in zero3-compiled:int8/int4+ef. ddp is always among those "
            "whose time is measured.",
            show_default=" ".join(defaults.ZERO_CONTENDERS),
        ),
    ] = None,
    nproc: Nproc = 2,
    model: Annotated[
        str, typer.Option(help=f"llama-34m, {', '.join(MODELS)} or the CONFIG.json of a LLaMA.")
    ] = "llama-34m",
    measure: Annotated[
        str,
        typer.Option(
            help="time: all contenders in turns, in one set of processes; memory: each in processes of its own; both."
        ),
    ] = "both",
    link: Links = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often each is timed, in turns; memory is measured once.")] = 8,
    json_file: JsonFile = None,
) -> None:
    """Measure a step of a language model by ZeRO, Octavo's and torch's, beside DDP: its time and the memory of a
    rank."""
    from octavo.bench import zero as bench
    from octavo.bench import zero_jobs

    names, links = contenders or list(defaults.ZERO_CONTENDERS), link or [None]
    if measure == zero_jobs.MEMORY:
        say_unlinked(link)
        links = [None]
    options = dict(rounds=rounds, model=model, what=measure)
    measured = measured_by_ranks(
        lambda: [zero_jobs.measure_as_rank(names, **options)],
        lambda: zero_jobs.measure(names, **options, nproc=nproc, links=links),
        nproc,
        json_file,
        lambda: zero_jobs.check(names, model, links, measure),
    )

    def show_rows(rows: list[bench.Row]) -> None:
        show(bench.title(model, rows[0]), dicts(rows), without_link(bench.HEADINGS, rows), json_file)

    show_last(measured, show_rows)


@app.command()
def allreduce(
    plans: Annotated[
        list[str] | None,
        typer.Argument(help="Plans without error feedback.", show_default=" ".join(defaults.ALLREDUCE_PLANS)),
    ] = None,
    nproc: Nproc = 2,
    kib: Annotated[
        list[int] | None,
        typer.Option(
            min=1,
            help="Size of the tensor in KiB; may be repeated.",
            show_default=" ".join(map(str, defaults.ALLREDUCE_SIZES_KIB)),
        ),
    ] = None,
    link: Links = None,
    rounds: Rounds = 15,
    json_file: JsonFile = None,
) -> None:
    """Measure octavo.all_reduce of a float32 tensor by plan, by link and by size, against
    torch.distributed.all_reduce."""
    from octavo.bench import allreduce as bench

    wanted, links = plans or list(defaults.ALLREDUCE_PLANS), link or [None]
    options = dict(rounds=rounds, sizes_kib=kib or defaults.ALLREDUCE_SIZES_KIB)
    measured = measured_by_ranks(
        lambda: [bench.measure_as_rank(wanted, **options)],
        lambda: bench.measure(wanted, **options, nproc=nproc, links=links),
        nproc,
        json_file,
        lambda: bench.check(wanted, links),
    )

    def show_rows(rows: list[bench.Row]) -> None:
        show("all-reduce of one tensor", dicts(rows), without_link(bench.HEADINGS, rows), json_file)

    show_last(measured, show_rows)


@app.command()
def host(
    nproc: Annotated[int, typer.Option(min=2, help="Local ranks; torchrun's own number counts instead.")] = 2,
    rounds: Rounds = 25,
    json_file: JsonFile = None,
) -> None:
    """Measure collectives between ranks of one host: through memory that they share, against Gloo's loopback."""
    from octavo.bench import host as bench

    rows = measured_by_ranks(
        lambda: bench.measure_as_rank(rounds), lambda: bench.measure(nproc, rounds), nproc, json_file
    )
    if rows is not None:
        show("collectives of ranks of one host", dicts(rows), bench.HEADINGS, json_file)


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
        refuse(f"[bench.optim] --dtype must be {' or '.join(bench.DTYPES)}, not '{dtype}'")
    check_json_file(json_file)
    with errors_in_a_sentence():
        report = bench.bench(elements, bench.DTYPES[dtype], rounds, threads, words or ())
    title = f"a step of {elements / 1e6:.1f} M parameters, {dtype}, {report.rows[0].threads} threads, {octavo._C.isa()}"
    show(title, dicts(report.rows), bench.HEADINGS, json_file, report.remarks)


@app.command()
def memory(
    words: Words = None,
    model: Annotated[str, typer.Option(help=f"{either(MODELS)}.")] = "220m",
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

    check_json_file(json_file)
    with errors_in_a_sentence():
        check_words("bench.memory", words or (), bench.CASES)
        cases = [case for case in bench.CASES if case == bench.BASELINE or is_wanted(words or (), case)]
        rows = bench.measure(model, device, limit_mib=limit, steps=steps, recompute=recompute, cases=cases)
    show(bench.title(model, rows), dicts(rows), bench.HEADINGS, json_file)


def _device(name: str) -> torch.device:
    """Returns the device to measure. Refuses one that is not here, with the reason."""
    try:
        return octavo.accelerator.accelerator_named(name).device()
    except (ValueError, NotImplementedError) as reason:
        refuse(reason)
