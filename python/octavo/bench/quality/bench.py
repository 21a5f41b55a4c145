# SPDX-License-Identifier: Apache-2.0
"""Trains what is left, one training after another, and keeps the JSON of the work folder up to date."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from octavo.bench.quality.protocol import Bench, chosen, loss
from octavo.bench.quality.results import collect
from octavo.bench.quality.runs import Outcome, Run
from octavo.bench.quality.settings import SETTINGS, Setting
from octavo.durable_files import write_json

JSON = "quality.json"


def run(
    settings: Sequence[Setting],
    work: Path,
    *,
    alpaca: Path | None = None,
    contenders: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    say: Callable[[str], object] = print,
) -> None:
    """Trains everything of `settings` that is not finished in `work`; only `contenders` and `seeds` where they are
    given.

    Can be killed at any time and called again. Raises ValueError for data that are missing, and TrainingFailed.
    """
    benches = [Bench(setting, work, alpaca) for setting in settings]
    for bench in benches:  # before any training: missing data are reported now, not after hours
        bench.prepare()
    write_results(settings, work)  # raises for a training in `work` that had other options, which would fail later
    for bench in benches:
        for name in contenders or bench.setting.contenders:

            def train(training: Run) -> Outcome:
                return _train(training, settings, work, say)

            point = chosen(bench.tune(name, train))
            list(bench.report(name, point, train, bench.setting.seeds_among(seeds)))


def _train(training: Run, settings: Sequence[Setting], work: Path, say: Callable[[str], object]) -> Outcome:
    is_new = training.outcome() is None
    if is_new:
        say(f"training {training.out.relative_to(work)}")
    outcome = training.finish()
    if is_new:
        say(f"  eval loss {loss(outcome):.4f}")
        write_results(settings, work)
    return outcome


def write_results(settings: Sequence[Setting], work: Path) -> Path:
    """Writes the JSON of `work`, with what is finished of the known settings and of `settings`. Returns its path."""
    work.mkdir(parents=True, exist_ok=True)
    every = {**SETTINGS, **{setting.name: setting for setting in settings}}
    write_json(work / JSON, collect(list(every.values()), work))
    return work / JSON
