# SPDX-License-Identifier: Apache-2.0
"""`octavo train --compare dense,sign+ef`: the same run with each plan, then one plot and one table."""

from __future__ import annotations

import dataclasses
import gc
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from octavo import durable_files
from octavo.train.checkpoint.run_folder import METRICS
from octavo.train.config import TrainConfig
from octavo.train.data.training_data import Data, load_data
from octavo.train.errors import DIVERGED, JobError, writing
from octavo.train.job import clear_job, run_job, try_job
from octavo.train.launch.world import World, ranks
from octavo.train.report import plots, tables
from octavo.train.report.metrics import read_metrics

PLOT = "compare.png"
FIGURES = "compare.json"
_SETTING = ("zero_stage", "compile", "device", "precision")  # of a run's summary


def run_comparison(config: TrainConfig, world: World, console: Console | None) -> dict[str, dict[str, Any]]:
    """Runs each plan into `out`/PLAN, one after the other, each resumable; returns the summaries by plan.

    The summary of a run that has diverged has the error's sentence under "diverged"; the others are compared without
    that run. Writes compare.png and compare.json into `out`. Raises JobError as `run_job` does, and before the first
    step of all runs where one of them cannot be trained.
    """
    data = load_data(config, world)
    _require_one_schedule([try_job(leg, world, data) for leg in config.runs])
    if config.fresh:  # all at once, so that an interrupted comparison never resumes with an older run
        for leg in config.runs:
            clear_job(leg, world)
        world.note_start_over()
        config = dataclasses.replace(config, fresh=False)
    summaries: dict[str, dict[str, Any]] = {}
    precision = None
    for plan in config.compare:
        if console:
            console.rule(Text(plan))
        summaries[plan] = _run_leg(config.for_plan(plan), world, console, data, precision)
        # The precision is chosen once: the runs must differ only in the plan.
        precision = precision or summaries[plan].get("precision")
    finished = {plan: summary for plan, summary in summaries.items() if not _has_diverged(summary)}
    _require_comparable(finished)
    if world.is_main:
        runs = {plan: read_metrics(Path(config.for_plan(plan).out) / METRICS) for plan in finished}
        with writing(what=config.out, where="train.compare"):
            plots.plot_comparison(runs, Path(config.out) / PLOT)
            durable_files.write_json(Path(config.out) / FIGURES, summaries)
    if console:
        console.print(_table(summaries))
        console.print(f"written to {Path(config.out) / PLOT}", highlight=False, markup=False, soft_wrap=True)
    return summaries


def _run_leg(
    leg: TrainConfig, world: World, console: Console | None, data: Data, precision: str | None
) -> dict[str, Any]:
    try:
        summary = run_job(leg, world, console, data=data, precision=precision)
        last_is_finite = summary["eval_loss"] is not None
        return summary if last_is_finite else summary | {"diverged": f"{DIVERGED}: its last loss is not finite"}
    except JobError as error:
        if DIVERGED not in str(error):
            raise
        if console:
            console.print(str(error), highlight=False, markup=False, soft_wrap=True)
        return {"plan": leg.resolved_plan, "optimizer": leg.optimizer_name, "diverged": str(error)}
    finally:
        gc.collect()  # strategies are in reference cycles, and the next leg would be measured beside this one's memory


def _has_diverged(summary: dict[str, Any]) -> bool:
    return "diverged" in summary


def _require_comparable(finished: dict[str, dict[str, Any]]) -> None:
    if not finished:
        raise JobError(f"[train.compare] with each of these plans {DIVERGED}: try a smaller --lr or --clip-norm 1")
    if len({summary["tokens"] for summary in finished.values()}) > 1:
        raise JobError(
            "[train.compare] the plans were trained on different numbers of tokens, because the number of ranks "
            "changed between their runs: repeat the comparison with --fresh"
        )
    if len({tuple(map(summary.get, _SETTING)) for summary in finished.values()}) > 1:
        raise JobError(
            "[train.compare] some of the plans were trained earlier with another --zero, --compile, --device or "
            "--precision, so that their figures are of another kind: repeat the comparison with --fresh"
        )
    _require_one_schedule([summary.get("schedules", [[0, summary["steps"]]]) for summary in finished.values()])


def _require_one_schedule(schedules: list[list[list[int]]]) -> None:
    if len(set(map(str, schedules))) > 1:
        raise JobError(
            "[train.compare] some of the plans go on from runs of fewer steps, and others do not, so that they have "
            "other learning rates: repeat the comparison with --fresh"
        )


def _table(summaries: dict[str, dict[str, Any]]) -> Table:
    first = next(summary for summary in summaries.values() if not _has_diverged(summary))
    title = f"{first['model']} on {first['data']}, {first['steps']} steps, {ranks(first['world_size'])}"
    table = Table(title=Text(title))
    for heading in ("plan", "optimizer"):
        table.add_column(heading, overflow="fold")
    for heading in ("eval loss", "change", "exact", "sent per step", "ratio", "ms per step"):
        table.add_column(heading, justify="right", no_wrap=True)
    for plan, summary in summaries.items():
        if _has_diverged(summary):
            table.add_row(Text(plan), summary["optimizer"], "diverged")
            continue
        exact, ratio = summary["accuracy"], summary["compression_ratio"]
        table.add_row(
            Text(plan),
            summary["optimizer"],
            tables.number(summary["eval_loss"]),
            _change(summary["eval_loss"], first["eval_loss"]),
            "-" if exact is None else f"{exact:.1%}",
            tables.size(summary["wire_bytes_per_step"]),
            "-" if ratio is None else f"{ratio:.1f}x",
            f"{summary['step_s'] * 1e3:.0f}",
        )
    return table


def _change(loss: float | None, first: float | None) -> str:
    return "-" if loss is None or not first else f"{loss / first - 1:+.2%}"
