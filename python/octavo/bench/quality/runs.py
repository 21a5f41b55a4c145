# SPDX-License-Identifier: Apache-2.0
"""One training of the bench: `octavo train` in a process of its own, once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.bench.jobs import end_launcher
from octavo.bench.machine import machine
from octavo.durable_files import write_json
from octavo.train.errors import DIVERGED
from octavo.train.launch import die_with_parent

OUTCOME = "outcome.json"
LOG = "train.log"
DEADLINE_S = 12 * 3600.0
_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

Outcome = dict[str, Any]
"""`summary.json` of a finished run, or {"diverged": True}; also its `machine`, the one on which it ended, and its
`options`."""


class TrainingFailed(RuntimeError):
    """A training ended for a reason that says nothing about its hyperparameters."""


@dataclass(frozen=True)
class Run:
    """A training into the folder `out`. `options`: those of `octavo train`, by name, without `--out`."""

    out: Path
    options: dict[str, Any]

    def outcome(self) -> Outcome | None:
        """Returns the outcome, or None where the run is not finished. Raises ValueError for an outcome of other
        options."""
        try:
            outcome = json.loads((self.out / OUTCOME).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        if outcome.get("options", self._options()) != self._options():
            raise ValueError(f"[bench.quality] {self.out} was trained with other options: choose another --work")
        return outcome

    def finish(self) -> Outcome:
        """Trains to the end, from the last checkpoint if there is one, and returns the outcome. A finished run only
        loses the checkpoint that it was stopped from removing. Raises TrainingFailed."""
        done = self.outcome()
        if done is None:
            done = {**self._train(), "machine": machine(), "options": self._options()}
            write_json(self.out / OUTCOME, done)
        shutil.rmtree(self.out / "checkpoint", ignore_errors=True)  # large, and of no use any more
        return done

    def _options(self) -> dict[str, str]:
        """Returns the options that decide the outcome, as text. The files, `data` and `model`, are left out: they are
        in --work."""
        return {name: str(value) for name, value in self.options.items() if name not in ("data", "model")}

    def _train(self) -> Outcome:
        self.out.mkdir(parents=True, exist_ok=True)
        with (self.out / LOG).open("w") as log, _started(self.command(), log) as process:
            try:
                status = process.wait(timeout=DEADLINE_S)
            except subprocess.TimeoutExpired:
                raise TrainingFailed(self._failure(f"was not finished after {DEADLINE_S / 3600:.0f} hours")) from None
        if status == 0:
            return json.loads((self.out / "summary.json").read_text(encoding="utf-8"))
        if self._has_diverged():
            return {"diverged": True}
        raise TrainingFailed(self._failure(f"ended with exit status {status}"))

    def command(self) -> list[str]:
        guard = [sys.executable, "-I", "-S", die_with_parent.__file__, str(os.getpid())]
        arguments = [*guard, sys.executable, "-m", "octavo", "train", "--out", str(self.out)]
        for name, value in self.options.items():
            arguments += [f"--{name.replace('_', '-')}", str(value)]
        return arguments

    def _has_diverged(self) -> bool:
        """Whether `octavo train` gave up because no gradient was finite any more."""
        return DIVERGED in (self.out / LOG).read_text(encoding="utf-8")

    def _failure(self, what: str) -> str:
        words = [line for line in (self.out / LOG).read_text(encoding="utf-8").splitlines() if line.strip()]
        last = words[-1] if words else "nothing"
        return f"[bench.quality] `octavo train` {what} and said: {last} ({self.out / LOG} has the rest)"


@contextmanager
def _started(command: list[str], log) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a process and ends it when the block is left, in whatever way."""
    environment = {name: value for name, value in os.environ.items() if name not in _RANK_VARIABLES}
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield process
    finally:
        end_launcher(process)
