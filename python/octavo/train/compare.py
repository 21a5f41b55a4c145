# SPDX-License-Identifier: Apache-2.0
"""`octavo train --compare dense,sign+ef`: the same run with each plan, then one plot and one table."""

from __future__ import annotations

import dataclasses
import gc
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from octavo import durable_files
from octavo.train.checkpoint.run_folder import METRICS
from octavo.train.config import TrainConfig
from octavo.train.data.training_data import Data, load_data
from octavo.train.errors import DIVERGED, JobError, warn, writing
from octavo.train.job import run_job
from octavo.train.launch.world import World, ranks
from octavo.train.opening import clear_job, try_job
from octavo.train.report import plots, tables
from octavo.train.report.metrics import Totals, read_metrics
from octavo.train.report.summary import conditions

PLOT = "compare.png"
FIGURES = "compare.json"
_HEADING_WIDTH = 8
"""Characters in a line of the heading that has the name of a plan: the column is no wider than its figures."""
_OPTIONS = {"zero_stage": "--zero", "compile": "--compile", "device": "--device", "precision": "--precision"}


def run_comparison(config: TrainConfig, world: World, console: Console | None) -> dict[str, dict[str, Any]]:
    """Runs each plan into `out`/PLAN, one after the other, each resumable; returns the summaries by plan.

    The summary of a run that has diverged has the error's sentence under "diverged"; the others are compared without
    that run. Writes compare.png and compare.json into `out`. Raises JobError as `run_job` does, and before the first
    step of all runs where one of them cannot be trained, or not be compared with the others.
    """
    data = load_data(config, world)
    found = {plan: try_job(config.for_plan(plan), world, data) for plan in config.compare}
    # The precision is chosen once: the runs must differ only in the plan.
    precision = next((run["precision"] for run in found.values() if run.get("precision")), None)
    anew = conditions(config, world, Totals())
    _require_comparable(config, found, {**anew, "precision": precision})
    if config.fresh:  # all at once, so that an interrupted comparison never resumes with an older run
        for run in config.runs:
            clear_job(run, world)
        world.note_start_over()
        config = dataclasses.replace(config, fresh=False)
    summaries: dict[str, dict[str, Any]] = {}
    for plan in config.compare:
        if console:
            console.rule(Text(plan))
        summaries[plan] = _run_plan(config.for_plan(plan), world, console, data, precision)
        precision = precision or summaries[plan].get("precision")
    finished = {plan: summary for plan, summary in summaries.items() if not _has_diverged(summary)}
    if not finished:
        raise JobError(f"[train.compare] with each of these plans {DIVERGED}: {config.divergence_advice}")
    world.agree(lambda: _write(config, summaries, finished) if world.is_main else None)
    if console:
        console.print(_table(summaries))
        console.print(f"written to {Path(config.out) / PLOT}", highlight=False, markup=False, soft_wrap=True)
    return summaries


def _write(config: TrainConfig, summaries: dict[str, dict[str, Any]], finished: Iterable[str]) -> None:
    """Writes the figures, and plots those runs that still have the metrics of their steps."""
    runs = {}
    for plan in finished:
        path = Path(config.for_plan(plan).out) / METRICS
        if path.is_file():
            runs[plan] = read_metrics(path)
        else:
            warn(f"[train.compare] {path} is missing: the plot leaves out {plan}")
    with writing(what=config.out, where="train.compare"):
        durable_files.write_json(Path(config.out) / FIGURES, summaries)
        plots.plot_comparison(runs, Path(config.out) / PLOT)


def _run_plan(
    config: TrainConfig, world: World, console: Console | None, data: Data, precision: str | None
) -> dict[str, Any]:
    try:
        summary = run_job(config, world, console, data=data, precision=precision)
        last_is_finite = summary["eval_loss"] is not None
        return summary if last_is_finite else summary | {"diverged": f"{DIVERGED}: its last loss is not finite"}
    except JobError as error:
        if DIVERGED not in str(error):
            raise
        if console:
            console.print(str(error), highlight=False, markup=False, soft_wrap=True)
        return {"plan": config.resolved_plan, "optimizer": config.optimizer_name, "diverged": str(error)}
    finally:
        gc.collect()  # strategies are in reference cycles, and the next run would be measured beside this one's memory


def _has_diverged(summary: dict[str, Any]) -> bool:
    """Whether a run has diverged; it may also be one that is not finished, of which only `conditions` are known."""
    return "diverged" in summary or summary.get("eval_loss", 0.0) is None


def _require_comparable(config: TrainConfig, found: dict[str, dict[str, Any]], anew: dict[str, Any]) -> None:
    """Raises JobError, which names the runs to remove, where some were begun under other conditions than the others.
    `found`: what `try_job` says of each plan; `anew`: the conditions of a run that begins now."""
    differing = {plan: _differences(run, anew) for plan, run in found.items() if not _has_diverged(run)}
    if len(set(differing.values())) <= 1:
        return
    stale = [f"{config.for_plan(plan).out} ({differences})" for plan, differences in differing.items() if differences]
    raise JobError(
        f"[train.compare] the other plans cannot be compared with what was trained earlier in {', '.join(stale)}: "
        f"remove the folder{'s' * (len(stale) > 1)}, or give the options and the number of ranks from there"
    )


def _differences(run: dict[str, Any], anew: dict[str, Any]) -> str:
    """Returns the conditions of a run that differ from those of a run that begins now, as text."""
    # a precision not decided yet will be that of the other runs
    run = {**run, "precision": run.get("precision") or anew["precision"]}
    pairs = [(name, run.get(name), here) for name, here in anew.items()]
    return ", ".join(_difference(name, there, here) for name, there, here in pairs if there != here)


def _difference(name: str, there: Any, here: Any) -> str:
    if name == "schedules":
        there, here = (", then ".join(str(steps) for _, steps in schedules) for schedules in (there, here))
        name = "--steps"
    return f"{_OPTIONS.get(name, name)} {there} there and {here} here"


def _table(summaries: dict[str, dict[str, Any]]) -> Table:
    reference, first = next((plan, one) for plan, one in summaries.items() if not _has_diverged(one))
    title = f"{first['model']} on {first['data']}, {first['steps']} steps, {ranks(first['world_size'])}"
    table = Table(title=Text(title))
    for heading in ("plan", "optimizer"):
        table.add_column(heading, overflow="fold")
    change = "\n".join(textwrap.wrap(f"change from {reference}", _HEADING_WIDTH))
    for heading in ("eval loss", change, "exact", "sent per step", "ratio", "ms per step"):
        table.add_column(Text(heading), justify="right", no_wrap=True)
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
