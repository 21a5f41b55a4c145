# SPDX-License-Identifier: Apache-2.0
"""What is shown while training: rank 0 prints a bar in a terminal and plain lines elsewhere; other ranks are silent."""

from __future__ import annotations

import time
from typing import Any, Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from octavo.train.report.metrics import Totals, compression_ratio

_LINES_PER_RUN = 20
_SECONDS_BETWEEN_LINES = 10.0
_STEADY = 0.9
"""The weight of the earlier steps in the speed shown: the speed of single steps varies too much to be read."""


class Display(Protocol):
    """Follows a run. `update` takes the line of metrics.jsonl and the totals so far."""

    def note(self, text: str) -> None:
        """Shows a line that stays."""

    def update(self, record: dict[str, Any], totals: Totals) -> None:
        """Is called after each step."""

    def close(self) -> None:
        """Is called when the run is over, whether it succeeded or failed."""


class Bar:
    """A rich progress bar with loss, tokens/s, bytes on the wire and the time that is left."""

    def __init__(self, console: Console, steps: int, done: int) -> None:
        self._progress = Progress(
            TextColumn("[bold]train"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("loss [cyan]{task.fields[loss]}"),
            TextColumn("{task.fields[speed]} tok/s"),
            TextColumn("wire [magenta]{task.fields[wire]}"),
            TimeElapsedColumn(),
            TextColumn("eta"),
            TimeRemainingColumn(),
            console=console,
        )
        self._speed: float | None = None
        self._task = self._progress.add_task("train", total=steps, completed=done, loss="-", speed="-", wire="-")
        self._progress.start()

    def note(self, text: str) -> None:
        """Prints above the bar."""
        self._progress.console.print(text, highlight=False, markup=False)

    def update(self, record: dict[str, Any], totals: Totals) -> None:
        """Moves the bar."""
        latest = record["tokens_per_s"]
        self._speed = latest if self._speed is None else _STEADY * self._speed + (1 - _STEADY) * latest
        fields = dict(loss=_loss(record), speed=f"{self._speed:,.0f}", wire=wire_text(totals))
        self._progress.update(self._task, completed=record["step"], **fields)

    def close(self) -> None:
        """Stops the bar and leaves it on the screen."""
        self._progress.stop()


class Lines:
    """Plain lines: about twenty per run, and at least one every ten seconds."""

    def __init__(self, console: Console, steps: int) -> None:
        self._console, self._steps, self._every = console, steps, max(1, steps // _LINES_PER_RUN)
        self._last = time.monotonic()

    def note(self, text: str) -> None:
        """Prints a line."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def update(self, record: dict[str, Any], totals: Totals) -> None:
        """Prints a line where one is due."""
        step, now = record["step"], time.monotonic()
        if step % self._every and step not in (1, self._steps) and now - self._last < _SECONDS_BETWEEN_LINES:
            return
        self._last = now
        eta = (self._steps - step) * totals.step_s
        self.note(
            f"step {step}/{self._steps}  loss {_loss(record)}  {record['tokens_per_s']:,.0f} tok/s  "
            f"wire {wire_text(totals)}  eta {eta:.0f} s"
        )

    def close(self) -> None:
        """Does nothing."""


class Silence:
    """The display of ranks other than 0."""

    def note(self, text: str) -> None:
        """Does nothing."""

    def update(self, record: dict[str, Any], totals: Totals) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


def make_display(console: Console | None, steps: int, done: int) -> Display:
    """Returns the display for this rank: `console` is None on all ranks but the first."""
    if console is None:
        return Silence()
    return Bar(console, steps, done) if console.is_interactive else Lines(console, steps)


def wire_text(totals: Totals) -> str:
    """Returns the bytes sent so far and how many times fewer they are than in fp32, as `1.2 MB (22.1x)`; without the
    latter where nothing was sent yet."""
    ratio = compression_ratio(totals.dense_bytes, totals.wire_bytes)
    return f"{totals.wire_bytes / 1e6:,.1f} MB" + ("" if ratio is None else f" ({ratio:.1f}x)")


def _loss(record: dict[str, Any]) -> str:
    return "not finite" if record["loss"] is None else f"{record['loss']:.4f}"
