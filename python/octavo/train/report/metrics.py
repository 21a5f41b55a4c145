# SPDX-License-Identifier: Apache-2.0
"""`metrics.jsonl`, one line per step, and the totals of a run, which checkpoints keep."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.train.errors import writing


def finite(value: float | None) -> float | None:
    """Returns `value`, or None where it is a NaN or an infinity, which JSON cannot express."""
    return value if value is not None and math.isfinite(value) else None


def compression_ratio(dense_bytes: int, wire_bytes: int) -> float | None:
    """Returns the compression ratio: 1 where dense gradients would have sent nothing either, as on a single rank; None
    where nothing was sent in place of something."""
    if not wire_bytes:
        return None if dense_bytes else 1.0
    return dense_bytes / wire_bytes


@dataclass
class Totals:
    """Sums over the steps so far. Every checkpoint has rank 0's; bytes are what that rank handed to c10d. Where ranks
    step alone, each rank's state has its own skipped steps, too (`training_state.rank_state`)."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    wire_bytes: int = 0
    dense_bytes: int = 0
    late_wire_bytes: int = 0
    late_dense_bytes: int = 0
    skipped_steps: int = 0
    skipped_in_a_row: int = 0
    first_loss: float | None = None
    last_loss: float | None = None
    eval_loss: float | None = None
    compiling_steps: int = 0
    compiling_seconds: float = 0.0
    """Those of the first steps of each process, in which a model is compiled; part of `step` and `seconds`."""
    schedules: list[list[int]] = dataclasses.field(default_factory=list)
    """[FIRST, STEPS] of each learning rate schedule: that of a run of STEPS steps was used after step FIRST."""

    def schedule(self, steps: int) -> None:
        """Says that the learning rates of the next steps are those of a run of `steps` steps."""
        self.schedules = self.schedules_until(steps)

    def schedules_until(self, steps: int) -> list[list[int]]:
        """Returns `schedules` as they are once the run goes on to `steps` steps."""
        is_same = bool(self.schedules) and self.schedules[-1][1] == steps
        return self.schedules if is_same else [*self.schedules, [self.step, steps]]

    @property
    def step_s(self) -> float:
        """The mean seconds of a step, without those steps that compile where there are others."""
        steps = self.step - self.compiling_steps
        return (self.seconds - self.compiling_seconds) / steps if steps else self.seconds / self.step

    def add_step(
        self, step: int, tokens: int, seconds: float, skipped: bool, loss: float | None, *, compiles: bool
    ) -> None:
        """Counts a step; `loss` is None where it was not finite."""
        self.step, self.tokens, self.seconds = step, self.tokens + tokens, self.seconds + seconds
        self.compiling_steps += compiles
        self.compiling_seconds += seconds * compiles
        self.skipped_steps += skipped
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if skipped else 0
        self.first_loss = loss if self.first_loss is None else self.first_loss
        self.last_loss = loss

    def add_bytes(self, wire: int, dense: int, late: bool) -> None:
        """Counts the bytes that a step sent and those that fp32 would have; `late` means after the optimizer's
        warm-up."""
        self.wire_bytes += wire
        self.dense_bytes += dense
        if late:
            self.late_wire_bytes += wire
            self.late_dense_bytes += dense

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Totals:
        """Returns the totals of a checkpoint. Raises ValueError for names that are not known here."""
        unknown = values.keys() - {field.name for field in dataclasses.fields(cls)}
        if unknown:
            raise ValueError(
                f"[train.metrics] the checkpoint counts {', '.join(sorted(unknown))}, which this version of Octavo "
                f"does not know: continue with the version that saved it, or start over with --fresh"
            )
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Returns the totals as plain values for JSON."""
        return dataclasses.asdict(self)


class MetricsLog:
    """Appends records to a JSON-lines file; opening it drops everything after `kept_step`. `missing`: how many of the
    steps 1 … `kept_step` have no whole line there."""

    def __init__(self, path: Path, kept_step: int) -> None:
        self._path = path
        with self._writing():
            path.touch()
            kept = [(record["step"], end) for record, end in _records(path) if record["step"] <= kept_step]
            os.truncate(path, kept[-1][1] if kept else 0)
            self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - open as long as the run
        self.missing = kept_step - len({step for step, _ in kept})

    def append(self, record: dict[str, Any]) -> None:
        """Adds one line and flushes it: a SIGKILL of this process loses none."""
        with self._writing():
            self._file.write(json.dumps(record, allow_nan=False) + "\n")
            self._file.flush()

    def sync(self) -> None:
        """Returns once all lines are on the disk; a checkpoint must not outlive its steps' lines."""
        with self._writing():
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Syncs and closes."""
        try:
            self.sync()
        finally:
            with self._writing():  # a line that found no room is written again here
                self._file.close()

    def _writing(self) -> AbstractContextManager[None]:
        return writing(what=str(self._path), where="train.metrics")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Returns the whole records of a log, in order; lines that are torn or damaged are left out."""
    return [record for record, _ in _records(path)]


def _records(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """Yields each whole record, and the offset of its end."""
    end = 0
    with open(path, "rb") as file:
        for line in file:
            end += len(line)
            try:
                record = json.loads(line)
                whole = line.endswith(b"\n") and isinstance(record["step"], int)
            except (ValueError, KeyError, TypeError):
                whole = False
            if whole:
                yield record, end
