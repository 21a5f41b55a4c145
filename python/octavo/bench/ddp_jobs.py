# SPDX-License-Identifier: Apache-2.0
"""Starts the ranks of `octavo bench ddp`, and gathers rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import octavo
from octavo.bench import ddp
from octavo.bench.ddp import Row, Size
from octavo.bench.jobs import rows_of_job
from octavo.bench.options import write_file
from octavo.bench.ranks import in_job
from octavo.bench.torch_hooks import DOUBTFUL
from octavo.train.plan_text import split_rounds


def measure(
    contenders: Sequence[str], *, nproc: int, rounds: int, sizes: Sequence[Size], links: Sequence[str | None]
) -> Iterator[list[Row]]:
    """Measures for every link all plans together, at all sizes, then each of torch's hooks at each size in a job of
    its own. Yields all rows so far whenever a job has ended.

    `links`: rates that `check_links` has seen, None for this machine as it is. Raises ValueError for what cannot be
    measured and, where a job fails, RuntimeError with the ranks' last error line.
    """
    plans, hooks = _split(contenders)
    jobs = [[*plans, *_options(rounds, sizes)]] if plans else []
    jobs += [[hook, *_options(rounds, [size])] for hook in hooks for size in sizes]
    rows: list[Row] = []
    for link in links:
        for job in jobs:
            rows += rows_of_job(Row, ["bench", "ddp", *job], nproc, link)
            yield rows


def measure_as_rank(
    contenders: Sequence[str], *, rounds: int, sizes: Sequence[Size], report: Path | None
) -> list[Row] | None:
    """Measures as one rank: either plans, whose rows it returns on rank 0, or one hook, whose row it writes to
    `report`, or prints where there is none."""
    plans, hooks = _split(contenders)
    if not hooks:
        return in_job(lambda: [row for size in sizes for row in ddp.measure_size(plans, rounds, size)])
    if plans or len(hooks) > 1 or len(sizes) > 1:
        raise ValueError(
            f"[bench.ddp_jobs] {hooks[0]} may hang: under torchrun measure it alone, with one number of --rows"
        )
    ddp.try_hook(hooks[0], rounds, sizes[0], lambda row: _write([row], report))
    return None


def _write(rows: Sequence[Row], path: Path | None) -> None:
    text = json.dumps([asdict(row) for row in rows])
    if path is None:
        print(text, flush=True)  # the process may end without a flush
    else:
        write_file(path, text)


def _split(contenders: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the plans, and torch's hooks. Raises ValueError for what is neither."""
    plans = [name for name in contenders if name not in DOUBTFUL]
    check_plans(plans)
    return plans, [name for name in contenders if name in DOUBTFUL]


def check_plans(plans: Sequence[str]) -> None:
    """Raises ValueError for what is neither a plan nor rounds of local steps with a plan that they can take."""
    for plan in plans:
        if plan.startswith("zero"):
            raise ValueError(f"[bench.ddp_jobs] ZeRO is measured by another command: octavo bench zero {plan}")
        rounds, of_rounds = split_rounds(plan)
        parsed = octavo.Plan(of_rounds)
        if rounds:
            octavo._C.Outer.require_plan(parsed)


def _options(rounds: int, sizes: Sequence[Size]) -> list[str]:
    first = sizes[0]
    shape = [f"--layers={first.layers}", f"--width={first.width}", *[f"--rows={size.rows}" for size in sizes]]
    return [f"--rounds={rounds}", *shape]
