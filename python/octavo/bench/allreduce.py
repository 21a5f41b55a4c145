# SPDX-License-Identifier: Apache-2.0
"""`octavo bench allreduce`: octavo.all_reduce by plan and size against torch.distributed.all_reduce, in turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

import octavo
from octavo.bench.jobs import check_links, rows_of_job
from octavo.bench.linked_hosts import UNSHAPED
from octavo.bench.ranks import greatest, in_job
from octavo.bench.timing import ratio, take_turns, typical

TORCH = "torch"


@dataclass(frozen=True)
class Row:
    """A line of the table. Times are those of the slowest rank in each round."""

    kib: int  # the size of the float32 tensor
    plan: str
    milliseconds: float
    times_faster_than_torch: float
    link: str = UNSHAPED  # between the ranks, where the bench has shaped it


HEADINGS = {
    "link": "link",
    "kib": "KiB",
    "plan": "plan",
    "milliseconds": "ms",
    "times_faster_than_torch": "faster than torch",
}


def check(plans: Sequence[str], links: Sequence[str | None]) -> None:
    """Raises ValueError for what cannot be measured."""
    check_links(links)
    for plan in plans:
        if plan.startswith(("outer:", "zero")):
            other = "zero" if plan.startswith("zero") else "ddp"
            raise ValueError(f"[bench.allreduce] {plan} is measured by another command: octavo bench {other} {plan}")
        if ";" in plan:
            raise ValueError(f"[bench.allreduce] one tensor has no rules by name: give one plan, not {plan}")
        if octavo.Plan(plan).error_feedback:
            codec = plan.partition("+")[0]
            keeps_none = codec != plan and not octavo.Plan(codec).error_feedback
            other = f"{plan} works by what it remembers: give another plan"
            advice = f"give {codec}, not {plan}" if keeps_none else other
            raise ValueError(f"[bench.allreduce] one call keeps no residual: {advice}")


def measure(
    plans: Sequence[str], *, nproc: int, rounds: int, sizes_kib: Sequence[int], links: Sequence[str | None]
) -> Iterator[list[Row]]:
    """Starts the ranks here, or on hosts joined at each link, and yields all rows so far whenever a job has ended.
    Raises as `run_job` does."""
    sizes = [f"--kib={size}" for size in sizes_kib]
    rows: list[Row] = []
    for link in links:
        rows += rows_of_job(Row, ["bench", "allreduce", *plans, *sizes, f"--rounds={rounds}"], nproc, link)
        yield rows


def measure_as_rank(plans: Sequence[str], *, rounds: int, sizes_kib: Sequence[int]) -> list[Row] | None:
    """Measures as one rank. Returns the rows on rank 0, None elsewhere."""
    return in_job(lambda: [row for size in sizes_kib for row in _rows_of(plans, rounds, size)])


def _rows_of(plans: Sequence[str], rounds: int, kib: int) -> list[Row]:
    values = torch.randn(kib * 256)
    contenders = {plan: lambda plan=plan: octavo.all_reduce(values.clone(), plan) for plan in plans}
    contenders = {TORCH: lambda: dist.all_reduce(values.clone())} | contenders
    seconds = take_turns(contenders, rounds, before=lambda _: dist.barrier())
    seconds = {name: greatest(seconds[name]) for name in contenders}
    return [Row(kib, name, 1e3 * typical(seconds, name), ratio(seconds, TORCH, name)) for name in contenders]
