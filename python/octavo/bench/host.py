# SPDX-License-Identifier: Apache-2.0
"""Collectives between ranks of one host, in turns and on the same tensors: through memory that they share, and by
Gloo's loopback. In place means that what is sent was written to the shared memory, as ZeRO's messages are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from octavo import _C
from octavo.bench.jobs import rows_of_job
from octavo.bench.ranks import in_job
from octavo.bench.timing import ratio, take_turns, typical
from octavo.rendezvous import Rendezvous

SIZES_KIB = (64, 256, 1024, 4096, 16384, 65536)
"""The sizes of the whole tensor; each rank has, or gets, a part of it."""


@dataclass(frozen=True)
class Row:
    whole_kib: int
    collective: str
    gloo_ms: float
    shared_ms: float
    in_place_ms: float
    times_faster: float
    times_faster_in_place: float


HEADINGS = {
    "whole_kib": "KiB",
    "collective": "",
    "gloo_ms": "Gloo ms",
    "shared_ms": "shared ms",
    "in_place_ms": "in place ms",
    "times_faster": "times faster",
    "times_faster_in_place": "in place",
}


def measure(nproc: int, rounds: int) -> list[Row]:
    """Starts the ranks here. Raises as `run_job` does."""
    return rows_of_job(Row, ["bench", "host", f"--rounds={rounds}"], nproc, None)


def measure_as_rank(rounds: int) -> list[Row] | None:
    """Measures as one rank. Returns the rows on rank 0, None elsewhere. Raises RuntimeError where the ranks share no
    memory."""
    return in_job(lambda: _all_rows(rounds))


def _all_rows(rounds: int) -> list[Row]:
    gloo = Rendezvous(dist.group.WORLD, "bench.host", 60.0).connect()
    shared, why_not = _C.reach_by_shared_memory(gloo, True, 60.0)
    if why_not:
        raise RuntimeError(f"[bench.host] the ranks share no memory: {why_not}")
    return [row for size in SIZES_KIB for row in _rows_of(gloo, shared, size, rounds)]


def _rows_of(gloo: dist.Backend, shared: dist.Backend, whole_kib: int, rounds: int) -> list[Row]:
    part = whole_kib * 256 // gloo.size()
    own, whole, total = torch.randn(part), torch.randn(part * gloo.size()), torch.empty(part * gloo.size())
    own_there, whole_there = (_C.room_in_shared_memory(shared, t.nbytes).view(torch.float32) for t in (own, whole))
    result = torch.empty(part)

    def gather(backend: dist.Backend, from_: torch.Tensor) -> Callable[[], object]:
        return lambda: backend._allgather_base(total, from_).wait()

    def reduce(backend: dist.Backend, from_: torch.Tensor) -> Callable[[], object]:
        return lambda: backend._reduce_scatter_base(result, from_).wait()

    rows = []
    for name, collective, private, there in (
        ("gather", gather, own, own_there),
        ("reduce", reduce, whole, whole_there),
    ):
        there.copy_(private)
        contenders = {
            "gloo": collective(gloo, private),
            "shared": collective(shared, private),
            "in place": collective(shared, there),
        }
        seconds = take_turns(contenders, rounds, warmup=4, before=lambda _: gloo.barrier().wait())
        milliseconds = [1e3 * typical(seconds, contender) for contender in contenders]
        times = [ratio(seconds, "gloo", contender) for contender in ("shared", "in place")]
        rows.append(Row(whole_kib, name, *milliseconds, *times))
    return rows
