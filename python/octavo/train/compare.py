# SPDX-License-Identifier: Apache-2.0
"""`octavo train --compare dense,sign+ef`: the same run with each plan, then one plot and one table."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from octavo import durable_files
from octavo.train.checkpoint.run_folder import METRICS
from octavo.train.config import TrainConfig
from octavo.train.errors import JobError
from octavo.train.job import run_job
from octavo.train.launch.world import World
from octavo.train.report import plots, tables
from octavo.train.report.metrics import read_metrics

PLOT = "compare.png"
FIGURES = "compare.json"


def run_comparison(config: TrainConfig, world: World, console: Console | None) -> dict[str, dict[str, Any]]:
    """Runs each plan into `out`/PLAN, one after the other, each resumable; returns the summaries by plan.

    Writes compare.png and compare.json into `out`. Raises JobError as `run_job` does.
    """
    summaries: dict[str, dict[str, Any]] = {}
    logs, precision = {}, config.precision
    for plan in config.compare:
        if console:
            console.rule(plan)
        leg = dataclasses.replace(config.for_plan(plan), precision=precision)
        summaries[plan], logs[plan] = run_job(leg, world, console), Path(leg.out) / METRICS
        precision = summaries[plan]["precision"]  # chosen once: the plans must differ in nothing else
    if len({summary["tokens"] for summary in summaries.values()}) > 1:
        raise JobError(
            "[train.compare] the plans were trained on different numbers of tokens, because the number of ranks "
            "changed between their runs: repeat the comparison with --fresh"
        )
    if world.is_main:
        runs = {plan: read_metrics(path) for plan, path in logs.items()}
        plots.plot_comparison(runs, Path(config.out) / PLOT)
        durable_files.write_json(Path(config.out) / FIGURES, summaries)
    if console:
        console.print(_table(summaries))
        console.print(f"written to {Path(config.out) / PLOT}", highlight=False, markup=False, soft_wrap=True)
    return summaries


def _table(summaries: dict[str, dict[str, Any]]) -> Table:
    first = next(iter(summaries.values()))
    title = f"{first['model']} on {first['data']}, {first['steps']} steps, {first['world_size']} ranks"
    table = Table(title=title)
    for heading in ("plan", "optimizer"):
        table.add_column(heading, overflow="fold")
    for heading in ("eval loss", "change", "exact", "sent per step", "ratio", "ms per step"):
        table.add_column(heading, justify="right", no_wrap=True)
    for plan, summary in summaries.items():
        exact, ratio = summary["accuracy"], summary["compression_ratio"]
        table.add_row(
            plan,
            summary["optimizer"],
            tables.number(summary["eval_loss"]),
            f"{summary['eval_loss'] / first['eval_loss'] - 1:+.2%}",
            "-" if exact is None else f"{exact:.1%}",
            tables.size(summary["wire_bytes_per_step"]),
            "-" if ratio is None else f"{ratio:.1f}x",
            f"{summary['step_s'] * 1e3:.0f}",
        )
    return table
