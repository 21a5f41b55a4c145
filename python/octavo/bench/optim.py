# SPDX-License-Identifier: Apache-2.0
"""Steps of optimizers side by side: torch's, Octavo's, and those of other libraries where they are installed.

All of them step the same parameters with the same gradients, each with a state of its own, and take turns. The limit is
the bandwidth of a copy measured in the same rounds: a step must read parameters, gradients and states, and write
parameters and states, once. What a step must move follows from its tensors, so that fewer bits of state mean fewer
bytes. On a CPU a copy also reads the memory that it overwrites. A step has read that memory in any case, so a good step
is faster than the copy (above 1.00).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

import octavo
from octavo.bench.optim_peers import PEERS
from octavo.bench.timing import Seconds, check_words, is_wanted, ratio, take_turns, typical, using_threads
from octavo.cores import usable_cores

ELEMENTS = 26 * 10**6
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
THREADS_PER_CORE = 4  # more of them only wait for one another; OpenMP crashes where it cannot start as many as asked
LR = 1e-5  # small, so that parameters hardly change in however many rounds
COPY = "copy"
BASELINE = "torch AdamW fused, float32"
OWN = (
    *("Adam", "Adam8bit", "Adam4bit", "AdamW", "AdamW8bit", "AdamW4bit", "PagedAdamW8bit"),
    *("Lion", "Lion8bit"),
)


@dataclass(frozen=True)
class Row:
    optimizer: str
    nanoseconds: float  # per parameter, the median over rounds
    least_nanoseconds: float  # per parameter, in the best round
    of_torch: float | None  # time against torch's fused AdamW in float32: 0.5 takes half as long
    state_per_parameter: float  # bytes
    moved_per_parameter: float  # bytes that a step must read and write
    gigabytes_per_s: float  # the rate of these bytes
    of_copy: float  # that rate divided by the copy's; 1.0 is as fast as memory
    elements: int
    dtype: str
    threads: int


HEADINGS = {
    "optimizer": "optimizer",
    "nanoseconds": "ns/param",
    "least_nanoseconds": "best",
    "of_torch": "of torch's time",
    "state_per_parameter": "state B/param",
    "moved_per_parameter": "moved B/param",
    "gigabytes_per_s": "GB/s",
    "of_copy": "of copy",
}


@dataclass(frozen=True)
class Report:
    rows: list[Row]
    remarks: list[str]  # a sentence for each contender that is missing


def shapes_of(elements: int) -> list[tuple[int, ...]]:
    """Returns shapes of `elements` elements in all: half of them in one large matrix, as embeddings are, the rest in
    the layers of a model. Matrices fill whole blocks of every library, because some libraries otherwise keep a state in
    32 bits."""
    layers, matrices, wide = 8, 4, 3
    width = max(8, int((elements / 2 / layers / (matrices + wide * 2.75)) ** 0.5) // 64 * 64)
    layer = [(width, width)] * matrices + [(width * 11 // 4, width)] * wide + [(width,)] * 2
    rest = elements - layers * sum(torch.Size(shape).numel() for shape in layer)
    if rest < 0:
        return [(elements,)]
    rows = rest // width // 64 * 64
    odd = rest - rows * width
    return [*([(rows, width)] if rows else []), *layer * layers, *([(odd,)] if odd else [])]


def bench(
    elements: int = ELEMENTS,
    dtype: torch.dtype = torch.float32,
    rounds: int = 15,
    threads: int | None = None,
    words: Sequence[str] = (),
) -> Report:
    """Measures on the CPU. `dtype` is that of parameters and gradients; `threads` None: as many as torch has. `words`:
    measures the contenders whose names have one of these words, and the baseline; empty: all. Raises ValueError for
    more threads than make sense, and for a word that no name has."""
    _check_threads(threads, usable_cores())
    with using_threads(threads or torch.get_num_threads()):
        return _bench(elements, dtype, rounds, words)


def _check_threads(threads: int | None, cores: int) -> None:
    if threads is not None and threads > THREADS_PER_CORE * cores:
        raise ValueError(
            f"[bench.optim] --threads must be at most {THREADS_PER_CORE * cores} here ({THREADS_PER_CORE} threads per "
            f"core, {cores} cores), not {threads}"
        )


def _bench(elements: int, dtype: torch.dtype, rounds: int, words: Sequence[str]) -> Report:
    torch.manual_seed(0)
    parameters = _parameters(elements, dtype)
    plain = parameters if dtype == torch.float32 else _parameters(elements, torch.float32)
    built = {BASELINE: torch.optim.AdamW(plain, lr=LR, fused=True)}
    if dtype != torch.float32:
        built["torch AdamW fused"] = torch.optim.AdamW(parameters, lr=LR, fused=True)
    built["torch AdamW foreach"] = torch.optim.AdamW(parameters, lr=LR, foreach=True)
    built |= {f"octavo {name}": getattr(octavo.optim, name)(parameters, lr=LR) for name in OWN}
    peers, remarks = _peers(parameters, words)
    check_words(
        "bench.optim", words, [COPY, *built, *(name for peer in PEERS.values() for name in peer.names)], *remarks
    )
    wanted = (built | peers).items()
    built = {name: optimizer for name, optimizer in wanted if name == BASELINE or is_wanted(words, name)}
    seconds = _take_turns(built, elements, rounds)
    moved = {name: _moved_bytes(optimizer) / elements for name, optimizer in built.items()} | {COPY: 8.0}
    rows = [_row(seconds, name, built.get(name), elements, dtype, moved) for name in seconds]
    return Report(rows, remarks)


def state_bytes(optimizer: Optimizer) -> int:
    """Returns the bytes of all tensors in an optimizer's state. Tensors shared between parameters count once."""
    held = {tensor.data_ptr(): tensor.nbytes for state in optimizer.state.values() for tensor in _plain_tensors(state)}
    return sum(held.values())


def _parameters(elements: int, dtype: torch.dtype) -> list[torch.nn.Parameter]:
    made = [torch.nn.Parameter((torch.randn(shape) * 0.02).to(dtype)) for shape in shapes_of(elements)]
    for parameter in made:
        parameter.grad = torch.randn_like(parameter) * 1e-3
    return made


def _peers(parameters: list[torch.nn.Parameter], words: Sequence[str]) -> tuple[dict[str, Optimizer], list[str]]:
    """Returns the optimizers of other libraries after their first step, which may compile, and a sentence for each
    library or optimizer that is wanted and left out."""
    built, remarks = {}, []
    for library, peer in PEERS.items():
        if not any(is_wanted(words, name) for name in peer.names):
            continue
        try:
            contenders = peer.load()
        except Exception as error:  # whatever another library raises must not end the measurement of ours
            advice = f"; pip install {library} installs it" if isinstance(error, ImportError) else ""
            remarks.append(f"{library} is left out: {_reason(error)}{advice}")
            continue
        for name in filter(partial(is_wanted, words), contenders):
            try:
                optimizer = contenders[name](parameters, LR)
                optimizer.step()
                built[name] = optimizer
            except Exception as error:
                remarks.append(f"{name} is left out: {_reason(error)}")
    return built, remarks


def _reason(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _take_turns(built: dict[str, Optimizer], elements: int, rounds: int) -> Seconds:
    source, target = torch.randn(elements), torch.empty(elements)
    contenders: dict[str, Callable[[], Any]] = {COPY: partial(target.copy_, source)}
    return take_turns(contenders | {name: optimizer.step for name, optimizer in built.items()}, rounds)


def _moved_bytes(optimizer: Optimizer) -> int:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return sum(2 * p.nbytes + p.grad.nbytes for p in parameters) + 2 * state_bytes(optimizer)


def _row(
    seconds: Seconds,
    name: str,
    optimizer: Optimizer | None,
    elements: int,
    dtype: torch.dtype,
    moved: dict[str, float],
) -> Row:
    of_copy = median(
        (moved[name] / mine) / (moved[COPY] / copied) for mine, copied in zip(seconds[name], seconds[COPY], strict=True)
    )
    return Row(
        optimizer=name,
        nanoseconds=1e9 * typical(seconds, name) / elements,
        least_nanoseconds=1e9 * min(seconds[name]) / elements,
        of_torch=None if optimizer is None else ratio(seconds, name, BASELINE),
        state_per_parameter=0.0 if optimizer is None else state_bytes(optimizer) / elements,
        moved_per_parameter=moved[name],
        gigabytes_per_s=moved[name] * elements / typical(seconds, name) / 1e9,
        of_copy=of_copy,
        elements=elements,
        dtype=str(torch.float32 if name in (BASELINE, COPY) else dtype).removeprefix("torch."),
        threads=torch.get_num_threads(),
    )


def _plain_tensors(tree: Any) -> Iterator[Tensor]:
    """Yields the tensors in nested dicts and lists. For a tensor subclass that is made of other tensors it yields
    these."""
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, (list, tuple)):
        for item in tree:
            yield from _plain_tensors(item)
    elif isinstance(tree, Tensor):
        flatten = getattr(type(tree), "__tensor_flatten__", None)
        if flatten is None:
            yield tree
        else:
            yield from _plain_tensors([getattr(tree, name) for name in flatten(tree)[0]])
