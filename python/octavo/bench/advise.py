# SPDX-License-Identifier: Apache-2.0
"""`octavo advise`: measures which plan is fastest on this machine and this link, and says dense where dense is."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

import torch
import torch.distributed as dist

from octavo.bench import ddp, torch_hooks
from octavo.bench.ddp import ALONE, TORCH, Row, Size
from octavo.bench.jobs import run_job
from octavo.bench.ranks import greatest, in_job
from octavo.outer import FEWEST_ROUNDS
from octavo.train.plan_text import split_rounds

WORTH_IT = 1.03
"""A plan that is not this many times as fast as dense is not worth the change."""


@dataclass(frozen=True)
class Link:
    """The link while every rank sends to all others at once: how many bits of large messages a rank sends in a second,
    and the time that one byte takes."""

    gigabits_per_s: float
    latency_ms: float


@dataclass(frozen=True)
class Report:
    ranks: int
    link: Link
    rows: list[Row]

    @staticmethod
    def parse(text: str) -> Report:
        fields = json.loads(text)
        return Report(fields["ranks"], Link(**fields["link"]), [Row(**row) for row in fields["rows"]])

    def text(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"


def measure(plans: Sequence[str], *, nproc: int, rounds: int, size: Size, link: str | None) -> Report:
    """Starts the ranks here, or on hosts joined at `link`, which `check_links` has seen. Raises as `run_job` does."""
    options = [f"--rows={size.rows}", f"--layers={size.layers}", f"--width={size.width}", f"--rounds={rounds}"]
    return Report.parse(run_job(["advise", *plans, *options], nproc, link))


def measure_as_rank(plans: Sequence[str], *, rounds: int, size: Size) -> Report | None:
    """Measures as one rank. Returns the report on rank 0, None elsewhere."""
    return in_job(lambda: Report(dist.get_world_size(), _measure_link(), ddp.measure_size(plans, rounds, size)))


def _measure_link(message_bytes: int = 4 << 20, rounds: int = 5) -> Link:
    """Measures the link; a time is the median of the slowest rank."""
    world = dist.get_world_size()
    others = [rank for rank in range(world) if rank != dist.get_rank()]

    def seconds(bytes_each: int) -> float:
        sent, got = (torch.zeros(world, bytes_each, dtype=torch.uint8) for _ in range(2))
        taken = []
        for _ in range(rounds + 1):  # the first one connects
            dist.barrier()
            start = time.perf_counter()
            works = [dist.irecv(got[rank], rank) for rank in others]  # before anything is sent, as in GlooExchange
            works += [dist.isend(sent[rank], rank) for rank in others]
            for work in works:
                work.wait()
            taken.append(time.perf_counter() - start)
        (slowest,) = greatest([median(taken[1:])])
        return slowest

    latency = seconds(1)
    sending = max(seconds(message_bytes) - latency, 1e-9)
    return Link(8e-9 * (world - 1) * message_bytes / sending, 1e3 * latency)


def pays_below_gigabits_per_s(row: Row, dense_bytes: int) -> float | None:
    """Returns the rate of a link on which the bytes that a plan saves take as long as its codec. Below it the plan
    pays, even where nothing overlaps. Returns None where the plan saves nothing or needs no codec."""
    if not row.wire_bytes or not row.codec_ms or row.wire_bytes >= dense_bytes:
        return None
    return 8e-9 * (dense_bytes - row.wire_bytes) / (1e-3 * row.codec_ms)


HEADINGS = {
    "plan": "plan",
    "milliseconds": "ms",
    "of_no_communication": "times alone",
    "times_faster_than_torch": "faster than torch",
    "wire_bytes": "MB sent",
    "codec_ms": "codec ms",
    "pays_below": "pays below Gbit/s",
}


def as_dicts(report: Report) -> list[dict[str, object]]:
    dense_bytes = _by_name(report)[TORCH].wire_bytes
    return [asdict(row) | {"pays_below": pays_below_gigabits_per_s(row, dense_bytes)} for row in report.rows]


def _by_name(report: Report) -> dict[str, Row]:
    return {row.plan: row for row in report.rows}


def fastest(report: Report) -> Row:
    """Returns the row of the fastest plan, or that of torch's own DDP or `dense` where no plan is much faster than
    these. Rounds of local steps are left out, because they need a run that is long enough; so are torch's hooks, which
    are not plans."""
    plans = [row for row in report.rows if row.plan != ALONE and row.times_faster_than_torch is not None]
    plans = [row for row in plans if not split_rounds(row.plan)[0] and row.plan not in torch_hooks.HOOKS]
    best = max(plans, key=lambda row: row.times_faster_than_torch)
    plain = max((row for row in plans if row.plan in (TORCH, "dense")), key=lambda row: row.times_faster_than_torch)
    return plain if WORTH_IT * plain.times_faster_than_torch >= best.times_faster_than_torch else best


def sentences(report: Report) -> list[str]:
    """Returns the sentences of the advice."""
    best, by_name = fastest(report), _by_name(report)
    alone = by_name[ALONE].milliseconds
    rate, latency = report.link.gigabits_per_s, report.link.latency_ms
    link = f"this link, which carries {rate:.3g} Gbit/s with {latency:.2g} ms of latency"
    if best.plan in (TORCH, "dense"):
        said = f"dense is the fastest on {link}: no plan is {100 * (WORTH_IT - 1):.0f} % faster. Do not compress here."
    else:
        times = f"{best.times_faster_than_torch:.2f} times as fast as torch's DistributedDataParallel"
        said = f"{best.plan} is the fastest on {link}: {times}."
    hidden = (
        f"A step of {best.rows:,} tokens per rank takes {best.milliseconds:.1f} ms with it, {alone:.1f} ms without any "
        f"communication. The more tokens, the less there is to gain: --rows takes those of your step."
    )
    return [said, hidden, *_rounds_sentences(report, best)]


def _rounds_sentences(report: Report, best: Row) -> list[str]:
    """Returns a sentence for each kind of local steps that would gain something."""
    said = []
    for row in report.rows:
        rounds, plan = split_rounds(row.plan)
        if rounds and row.times_faster_than_torch > WORTH_IT * best.times_faster_than_torch:
            said.append(
                f"With local steps, exchanged every {rounds.every} steps by {plan} (octavo.Outer), a step takes "
                f"{row.milliseconds:.1f} ms on average: worth it in runs of {FEWEST_ROUNDS * rounds.every:,} steps "
                f"and more."
            )
    return said
