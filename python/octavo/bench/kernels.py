# SPDX-License-Identifier: Apache-2.0
"""Kernels on a device, and on the CPU, where they are compared with NumPy and torch, too.

Each kernel is compared with limits that are measured in the same run; 1.00 is as fast as the limit.

On a device the limit is a copy by the device's queue. 1.00 means as many bytes in a second, read and written. For
packbits there is also the limit "bytes copied": 1.00 means that it reads as many bytes in a second as the copy copies.

On the CPU 1.00 means the same time:

- packbits: a sum of the values; ``numpy.packbits``.
- unpackbits: a fill of the result; without ``out=`` also ``torch.full``.
- A codec with error feedback reads a float32 gradient and a bfloat16 residual, and writes the new residual, then the
  decoded gradient: a sum over one half of the bucket, an add over the other half and a fill of the whole, which move as
  many bytes ("minimal traffic").
- Selecting the largest values: a copy; ``torch.topk``.
- Blocks of 8 bits: ``quantize_blockwise`` of bitsandbytes.
- A count sketch: a copy; one row of it: ``torch.bincount``.
- What an owner does in a world of 64 ranks: the same on one thread.
- AdamW's step: that of torch's fused AdamW.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

import octavo
from octavo import _C
from octavo.bench.timing import Seconds, ratio, take_turns, typical, using_threads

BUCKET = 6_553_600  # elements: 26.2 MB, DDP's default bucket
#: Codecs by name, with the plan of each.
CODECS = {
    "sign+ef": "sign+ef",
    "sign:262144+ef": "sign:262144+ef",
    "sign-vote": "sign-vote",
    "int4+ef": "int4+ef",
    "int8+ef": "int8+ef",
    "fp8+ef": "fp8+ef",
    "ternary+ef": "ternary+ef",
    "bf16": "bf16",
    "fp32": "dense",
}
#: All of them keep a residual, so that they move the same bytes.
CPU_PLANS = ("sign+ef", "sign:262144+ef", "ternary+ef", "int3+ef", "int4+ef", "int8+ef", "fp8+ef")
OWNERS_PLANS = ("int4+ef", "sign+ef", "topk:64/4096:sign+ef")
OWNERS_RANKS = 64
SELECTING_PLANS = ("topk:0.01", "topk:64/4096:sign")
NUMPY = "numpy.packbits, one thread"
SIZES = (2**20, 10 * 2**20, 100 * 2**20)  # elements, as in DeepSpeed's description of packbits (seed 000)


@dataclass(frozen=True)
class Row:
    kernel: str
    elements: int
    milliseconds: float
    gigabytes_per_s: float  # of the bytes that the kernel must move
    limit: str  # what it is measured against
    of_limit: float  # 1.0 is as fast as the limit
    threads: int | None = None  # of the kernel, and of the limit unless its name says otherwise; None: on a device


#: The columns of the table; the bytes are those that the kernel must move.
HEADINGS = {
    "kernel": "kernel",
    "threads": "threads",
    "elements": "elements",
    "milliseconds": "ms",
    "gigabytes_per_s": "GB/s",
    "limit": "limit",
    "of_limit": "of limit",
}


def bench(elements: int = 64 * 2**20, rounds: int = 15, groups: Sequence[str] = ()) -> list[Row]:
    """Measures the CPU's kernels against its memory, NumPy and torch.

    `elements`: the size of the buffers for packing and unpacking; the codecs take a bucket of 26 MB. `groups`: the
    groups to measure; empty: all. Raises ValueError for an unknown one.
    """
    torch.manual_seed(0)
    measured = {
        "bits": lambda: _bits(elements, rounds),
        "codecs": lambda: _codecs(rounds),
        "selections": lambda: _selections(rounds),
        "blocks": lambda: _blocks(rounds),
        "sketch": lambda: _sketch(rounds),
        "owner": lambda: _owner(rounds),
        "steps": lambda: _steps(rounds),
    }
    rows = _rows_of(measured, groups)
    return [replace(row, threads=row.threads or torch.get_num_threads()) for row in rows]


def bench_device(
    device: torch.device, sizes: Sequence[int] = SIZES, rounds: int = 15, groups: Sequence[str] = ()
) -> list[Row]:
    """Measures every kernel on a device against a copy there: packing at all of `sizes` (in elements), the rest at 26
    MB. `groups`: as in ``bench``."""
    torch.manual_seed(0)
    measured = {
        "bits": lambda: [row for elements in sizes for row in _bits_on(device, elements, rounds)],
        "codecs": lambda: _codecs_on(device, rounds),
        "steps": lambda: _steps_on(device, rounds),
    }
    return _rows_of(measured, groups)


def _rows_of(measured: Mapping[str, Callable[[], list[Row]]], groups: Sequence[str]) -> list[Row]:
    if unknown := set(groups) - measured.keys():
        raise ValueError(f"[bench.kernels] expected groups among {', '.join(measured)}, got '{unknown.pop()}'")
    return [row for group, measure in measured.items() if not groups or group in groups for row in measure()]


def _row(
    seconds: Seconds, kernel: str, elements: int, bytes_each: float, limit: str, threads: int | None = None
) -> Row:
    time = typical(seconds, kernel)
    rate, of_limit = bytes_each * elements / time / 1e9, ratio(seconds, limit, kernel)
    return Row(kernel, elements, 1e3 * time, rate, limit, of_limit, threads)


def _against_copy(
    device: torch.device, elements: int, kernels: Mapping[str, tuple[float, Callable[[], object]]], rounds: int
) -> list[Row]:
    """Measures kernels against a copy. `kernels`: by name, the bytes that a kernel must move per element, and how it is
    run."""
    source, target = (torch.randn(elements).to(device) for _ in range(2))
    synchronize = _synchronizer(device)

    def finished(run: Callable[[], object]) -> Callable[[], None]:
        def timed() -> None:
            run()
            synchronize()

        return timed

    # non-blocking, so that the device's own queue copies, after what it was given before, just as it runs the kernels
    contenders = {"copy": finished(lambda: target.copy_(source, non_blocking=True))}
    contenders |= {name: finished(run) for name, (_, run) in kernels.items()}
    seconds = take_turns(contenders, rounds)
    copy_bytes = 2 * source.element_size()  # read and written
    rows = []
    for name, (bytes_each, _) in kernels.items():
        row = _row(seconds, name, elements, bytes_each, "copy")
        rows.append(replace(row, of_limit=row.of_limit * bytes_each / copy_bytes))
        if name == "packbits":
            rows.append(replace(row, gigabytes_per_s=row.gigabytes_per_s * 4 / bytes_each, limit="bytes copied"))
    return rows


def _synchronizer(device: torch.device) -> Callable[[], None]:
    if device.type == "cpu":
        return lambda: None
    return lambda: torch.get_device_module(device).synchronize(device)


def _bits_on(device: torch.device, elements: int, rounds: int) -> list[Row]:
    values, out = torch.randn(elements).to(device), torch.empty(elements, device=device)
    packed = octavo.packbits(values)
    kernels = {
        "packbits": (4.125, lambda: octavo.packbits(values)),
        "unpackbits": (4.125, lambda: octavo.unpackbits(packed, elements, out=out)),
    }
    return _against_copy(device, elements, kernels, rounds)


def _codecs_on(device: torch.device, rounds: int) -> list[Row]:
    gradient, out = (torch.randn(BUCKET).to(device) for _ in range(2))
    residual, following = (torch.zeros(BUCKET, dtype=torch.bfloat16, device=device) for _ in range(2))
    kernels: dict[str, tuple[float, Callable[[], object]]] = {}
    for name, text in CODECS.items():
        plan = octavo.Plan(text)
        payload = torch.empty(plan.payload_bytes(BUCKET), dtype=torch.uint8, device=device)
        feedback = (residual, following) if plan.error_feedback else (None, None)
        code = payload.numel() / BUCKET
        kernels[f"encode {name}"] = (
            4 + code + (4 if plan.error_feedback else 0),
            lambda plan=plan, payload=payload, feedback=feedback: _C.encode(plan, gradient, payload, *feedback),
        )
        kernels[f"decode {name}"] = (
            4 + code,
            lambda plan=plan, payload=payload: _C.decode(plan, payload, out),
        )
    return _against_copy(device, BUCKET, kernels, rounds)


def _steps_on(device: torch.device, rounds: int) -> list[Row]:
    p, g, m, v = (torch.randn(BUCKET).abs().to(device) for _ in range(4))
    kernels = {
        "adamw": (28.0, lambda: torch.ops.octavo.adamw_(p, g, m, v, 1, 1e-3, 0.9, 0.999, 1e-8, 0.01)),
        "frozen adamw": (20.0, lambda: torch.ops.octavo.frozen_adamw_(p, g, m, 1e-3, 1e-5)),
    }
    return _against_copy(device, BUCKET, kernels, rounds)


def _bits(elements: int, rounds: int) -> list[Row]:
    values, out = torch.randn(elements), torch.empty(elements)
    packed, array = octavo.packbits(values), values.numpy()
    seconds = take_turns(
        {
            "sum": lambda: values.sum(),
            "packbits": lambda: octavo.packbits(values),
            "fill": lambda: out.fill_(1.0),
            "unpackbits, out=": lambda: octavo.unpackbits(packed, elements, out=out),
            "full": lambda: torch.full((elements,), 1.0),
            "unpackbits": lambda: octavo.unpackbits(packed, elements),
        },
        rounds,
    )
    against_numpy = take_turns(
        {
            NUMPY: lambda: np.packbits(array >= 0),
            "packbits": lambda: octavo.packbits(values),
            "packbits, one thread": lambda: _packed_on_one_thread(values),
        },
        max(3, rounds // 4),
    )
    return [
        _row(seconds, "packbits", elements, 4, "sum"),
        _row(against_numpy, "packbits", elements, 4, NUMPY),
        _row(against_numpy, "packbits, one thread", elements, 4, NUMPY, threads=1),
        _row(seconds, "unpackbits, out=", elements, 4, "fill"),
        _row(seconds, "unpackbits", elements, 4, "fill"),  # its result's memory is fresh: the system makes pages
        _row(seconds, "unpackbits", elements, 4, "full"),
    ]


def _packed_on_one_thread(values: torch.Tensor) -> None:
    with using_threads(1):
        octavo.packbits(values)


def _codecs(rounds: int) -> list[Row]:
    gradient, out = torch.randn(BUCKET), torch.empty(BUCKET)
    residual, following = (torch.randn(BUCKET).bfloat16() for _ in range(2))
    half, added, sums = gradient[: BUCKET // 2], *(kept.view(torch.float32) for kept in (residual, following))
    plans = {text: octavo.Plan(text) for text in CPU_PLANS}
    payloads = {text: torch.empty(plan.payload_bytes(BUCKET), dtype=torch.uint8) for text, plan in plans.items()}

    def traffic() -> None:
        gradient[BUCKET // 2 :].sum()
        torch.add(half, added, out=sums)
        out.fill_(0.0)

    def go_round(text: str) -> None:
        _C.encode(plans[text], gradient, payloads[text], residual, following)
        _C.decode(plans[text], payloads[text], out)

    contenders = {"minimal traffic": traffic}
    contenders |= {f"encode + decode {text}": (lambda text=text: go_round(text)) for text in plans}
    seconds = take_turns(contenders, rounds)
    return [_row(seconds, name, BUCKET, 12, "minimal traffic") for name in contenders if name != "minimal traffic"]


def _encoder(text: str, gradient: torch.Tensor) -> Callable[[], None]:
    """Returns a function that encodes with a plan, without feedback."""
    plan = octavo.Plan(text)
    payload = torch.empty(plan.payload_bytes(gradient.numel()), dtype=torch.uint8)
    return lambda: _C.encode(plan, gradient, payload, None, None)


def _selections(rounds: int) -> list[Row]:
    """Measures selecting the largest values against copying all, and against torch."""
    gradient, out = torch.randn(BUCKET), torch.empty(BUCKET)
    torchs = "torch.topk, 1 %"
    contenders = {"copy": lambda: out.copy_(gradient), torchs: lambda: gradient.abs().topk(BUCKET // 100)}
    contenders |= {f"encode {text}": _encoder(text, gradient) for text in SELECTING_PLANS}
    seconds = take_turns(contenders, max(3, rounds // 2))
    first, *_ = (f"encode {text}" for text in SELECTING_PLANS)
    rows = [_row(seconds, f"encode {text}", BUCKET, 4, "copy") for text in SELECTING_PLANS]
    return [*rows, _row(seconds, first, BUCKET, 4, torchs)]


def _blocks(rounds: int) -> list[Row]:
    """Measures encoding to 8 bits in blocks of 256 against bitsandbytes on the CPU, where that is installed."""
    try:
        from bitsandbytes.functional import quantize_blockwise
    except ImportError:
        return []
    gradient = torch.randn(BUCKET)
    theirs = "bitsandbytes' quantize_blockwise"
    seconds = take_turns(
        {
            theirs: lambda: quantize_blockwise(gradient, blocksize=256),
            "encode int8": _encoder("int8", gradient),
        },
        max(3, rounds // 4),
    )
    return [_row(seconds, "encode int8", BUCKET, 5, theirs)]


def _owner(rounds: int) -> list[Row]:
    """Measures what an owner does with a bucket in a world of 64 ranks: it adds up 63 payloads of a 64th of the bucket
    and its own values, and encodes the sum."""
    count = BUCKET // OWNERS_RANKS // 64 * 64 * OWNERS_RANKS
    rows = []
    for text in OWNERS_PLANS:
        row = _row(_owners_seconds(text, count, rounds), "all threads", count, _bytes_each(text, count), "one thread")
        rows.append(replace(row, kernel=f"owner's sum, {OWNERS_RANKS} ranks, {text}"))
    return rows


def _owners_seconds(text: str, count: int, rounds: int) -> Seconds:
    compressor = _C.Compressor(_C.echo_backend(OWNERS_RANKS), octavo.Plan(text), [("gradient", count, False, 1)], 60.0)
    gradient = torch.randn(count)
    seconds: Seconds = {"one thread": [], "all threads": []}
    for _ in range(rounds):
        for name, threads in (("one thread", 1), ("all threads", torch.get_num_threads())):
            before = compressor.stats()["reduce_s"]
            with using_threads(threads):
                compressor.run_step(gradient.clone())
            seconds[name].append(compressor.stats()["reduce_s"] - before)
    return seconds


def _bytes_each(text: str, count: int) -> float:
    return octavo.Plan(text).payload_bytes(count) / count


def _sketch(rounds: int) -> list[Row]:
    """Measures a row of a count sketch against torch.bincount, which is given the columns, and the values with their
    signs."""
    count_of_rows, columns, key = 3, BUCKET // 30 // 64 * 64, 1  # a tenth as many cells as elements
    values, out = torch.randn(BUCKET), torch.empty(BUCKET)
    sketch = torch.zeros(count_of_rows, columns)
    # In a row whose cells contain 1, 2, 3 and so on, an element's estimate is the number of its cell, with its sign.
    _C.estimate_sketch(torch.arange(1.0, columns + 1).unsqueeze(0), out, key)
    indices, signed = out.abs().long() - 1, values * out.sign()
    insert, insert_row, estimate = (f"count sketch, {what}" for what in ("insert", "insert a row", "estimate"))
    bincount = "torch.bincount, one thread"
    seconds = take_turns(
        {
            "copy": lambda: out.copy_(values),
            bincount: lambda: torch.bincount(indices, weights=signed, minlength=columns),
            insert: lambda: _C.insert_sketch(sketch, values, key),
            estimate: lambda: _C.estimate_sketch(sketch, out, key),
        },
        rounds,
    )
    seconds[insert_row] = [time / count_of_rows for time in seconds[insert]]
    rows = [_row(seconds, insert_row, BUCKET, 4, bincount)]
    return rows + [_row(seconds, name, BUCKET, 4, "copy") for name in (insert, estimate)]


def _steps(rounds: int) -> list[Row]:
    def state() -> list[torch.Tensor]:
        return [torch.randn(BUCKET), torch.randn(BUCKET), torch.zeros(BUCKET), torch.zeros(BUCKET)]

    p, g, m, v = state()
    parameter = torch.nn.Parameter(p.clone())
    parameter.grad = g
    fused = torch.optim.AdamW([parameter], lr=1e-3, fused=True)
    seconds = take_turns(
        {
            "torch fused AdamW": lambda: fused.step(),
            "adamw": lambda: torch.ops.octavo.adamw_(p, g, m, v, 1, 1e-3, 0.9, 0.999, 1e-8, 0.01),
        },
        rounds,
    )
    return [_row(seconds, "adamw", BUCKET, 28, "torch fused AdamW")]
