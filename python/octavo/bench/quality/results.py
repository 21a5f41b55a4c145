# SPDX-License-Identifier: Apache-2.0
"""The JSON of the bench, made from what is finished in a work folder, and the forecast of what is not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.bench.quality.protocol import Bench, Reported, chosen, is_tuned, loss, trials_each
from octavo.bench.quality.runs import Run
from octavo.bench.quality.settings import CONTENDERS, Setting

SCHEMA = 1
_KEPT = (
    *("eval_loss", "final_loss", "accuracy", "compression_ratio", "compression_ratio_after_warmup", "precision"),
    *("wire_bytes_per_step", "dense_bytes_per_step", "parameters", "tokens", "steps", "step_s", "skipped_steps"),
    *("torch", "octavo"),
)
"""What the JSON keeps of a run's summary."""


def collect(settings: Sequence[Setting], work: Path) -> dict[str, Any]:
    """Returns everything finished in `work`, by setting and contender. Losses of diverged trainings are None."""
    return {
        "schema": SCHEMA,
        "settings": {setting.name: _setting(Bench(setting, work)) for setting in settings},
    }


def _setting(bench: Bench) -> dict[str, Any]:
    setting = bench.setting
    found = {name: _contender(bench, name) for name in CONTENDERS}
    return {
        "title": setting.title,
        "reported_on": setting.reported_on,
        "tuned_on": setting.tuned_on,
        "model": setting.model,
        "steps": setting.steps,
        "trial_steps": setting.trial_steps,
        "tokens_per_step": setting.tokens_per_step,
        "ranks": setting.ranks,
        "tuning_seed": setting.tuning_seed,
        "contenders": {name: entry for name, entry in found.items() if entry["trials"]},
    }


def _contender(bench: Bench, name: str) -> dict[str, Any]:
    trials = bench.tune(name, Run.outcome)
    tuned = is_tuned(name, trials)
    runs = list(bench.report(name, chosen(trials), Run.outcome, bench.setting.seeds)) if tuned else []
    return {
        "plan": CONTENDERS[name].text,
        "optimizer": CONTENDERS[name].optimizer,
        "trials_each": trials_each(name),
        "trials": [{**trial.point, "eval_loss": _number(trial.loss)} for trial in trials],
        "chosen": chosen(trials) if tuned else None,
        "runs": [_run(run) for run in runs],
    }


def _run(run: Reported) -> dict[str, Any]:
    outcome = run.outcome
    kept = {name: outcome[name] for name in _KEPT if name in outcome}
    kept["eval_loss"] = _number(loss(outcome))
    return {"seed": run.seed, "ranks": run.ranks, **kept, "machine": outcome["machine"]}


def _number(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None


@dataclass(frozen=True)
class Forecast:
    """What is left to do: the trainings, and their seconds on two quiet cores."""

    trials: int
    runs: int
    seconds: float


def forecast(bench: Bench, name: str, seeds: Sequence[int]) -> Forecast:
    """Returns what a contender still has to do."""
    setting, trials = bench.setting, bench.tune(name, Run.outcome)
    trials_left = trials_each(name) - len(trials)
    runs_left = len(bench.places(seeds))
    if not trials_left:
        runs_left -= len(list(bench.report(name, chosen(trials), Run.outcome, seeds)))
    steps = trials_left * setting.trial_steps + runs_left * setting.steps
    return Forecast(trials_left, runs_left, (trials_left + runs_left) * setting.start_s + steps * setting.step_s)
