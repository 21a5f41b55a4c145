# SPDX-License-Identifier: Apache-2.0
"""The trainings and their order: for each contender its trials, then the chosen point once per seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.bench.quality.runs import Outcome, Run
from octavo.bench.quality.search import Point, Trial, best, next_point
from octavo.bench.quality.settings import CONTENDERS, Setting
from octavo.durable_files import write_json

Ask = Callable[[Run], Outcome | None]
"""Returns the outcome of a run: trains it, or, where only finished runs count, returns None for the others."""


@dataclass(frozen=True)
class Reported:
    """A run with the chosen point, as the tables report it."""

    seed: int
    ranks: int
    outcome: Outcome


@dataclass(frozen=True)
class Bench:
    """The trainings of one setting in a work folder. `alpaca`: the file that the setting alpaca is made from."""

    setting: Setting
    work: Path
    alpaca: Path | None = None

    def tune(self, name: str, ask: Ask) -> list[Trial]:
        """Returns the trials of a contender; fewer than `trials_each` where `ask` has no outcome for one."""
        trials: list[Trial] = []
        contender = CONTENDERS[name]
        while (point := next_point(contender.moves, trials, contender.start)) is not None:
            outcome = ask(self.trial(name, point))
            if outcome is None:
                break
            trials.append(Trial(point, loss(outcome)))
        return trials

    def report(self, name: str, point: Point, ask: Ask, seeds: Sequence[int]) -> Iterator[Reported]:
        """Yields the reported runs of a contender for which `ask` has an outcome."""
        for seed, ranks in self.places(seeds):
            outcome = ask(self.reported(name, point, seed, ranks))
            if outcome is not None:
                yield Reported(seed, ranks, outcome)

    def places(self, seeds: Sequence[int]) -> list[tuple[int, int]]:
        """Returns (seed, ranks) of every reported run."""
        setting = self.setting
        others = [(seed, ranks) for ranks in setting.also_ranks for seed in seeds if seed in setting.also_seeds]
        return [(seed, setting.ranks) for seed in seeds] + others

    def trial(self, name: str, point: Point) -> Run:
        out = self._folder("trials", name) / _label(point)
        setting = self.setting
        data = setting.data.tuning(self._data_folder)
        return self._run(out, name, point, data, setting.trial_steps, setting.tuning_seed, setting.ranks)

    def reported(self, name: str, point: Point, seed: int, ranks: int) -> Run:
        out = self._folder("runs", name) / f"{_label(point)},seed={seed},ranks={ranks}"
        data = self.setting.data.reported(self._data_folder)
        return self._run(out, name, point, data, self.setting.steps, seed, ranks)

    def prepare(self) -> None:
        """Writes what the trainings read: data, and the model's CONFIG.json. Raises ValueError."""
        self.setting.data.write(self._data_folder, self.alpaca)
        if not isinstance(self.setting.model, str):
            self._data_folder.mkdir(parents=True, exist_ok=True)
            write_json(self._model_file, dict(self.setting.model))

    @property
    def _data_folder(self) -> Path:
        return self.work / "data"

    @property
    def _model_file(self) -> Path:
        return self._data_folder / f"{self.setting.name}-model.json"

    def _folder(self, kind: str, name: str) -> Path:
        return self.work / self.setting.name / kind / name.replace(" ", "-")

    def _run(self, out: Path, name: str, point: Point, data: str | None, steps: int, seed: int, ranks: int) -> Run:
        setting, contender = self.setting, CONTENDERS[name]
        options: dict[str, Any] = dict(
            plan=contender.plan_for(steps),
            optimizer=contender.optimizer,
            nproc=ranks,
            model=setting.model if isinstance(setting.model, str) else self._model_file,
            steps=steps,
            batch_size=setting.batch_size * setting.ranks // ranks,
            seq_len=setting.seq_len,
            seed=seed,
            eval_every=steps,
        )
        asked = {"data": data, "precision": setting.precision, "outer": contender.outer}
        return Run(out, {**options, **{name: value for name, value in asked.items() if value}, **point})


def loss(outcome: Outcome) -> float:
    """Returns the loss on held-out data after the last step; infinity where training diverged."""
    final = outcome.get("eval_loss")
    return float(final) if final is not None and math.isfinite(final) else math.inf


def is_tuned(name: str, trials: Sequence[Trial]) -> bool:
    return len(trials) == trials_each(name)


def trials_each(name: str) -> int:
    return 1 + len(CONTENDERS[name].moves)


def chosen(trials: Sequence[Trial]) -> Point:
    return best(trials).point


def _label(point: Point) -> str:
    return ",".join(f"{name}={value:g}" for name, value in point.items())
