# SPDX-License-Identifier: Apache-2.0
"""The plots of a run: its loss over steps, and several plans over steps and over bytes."""

from __future__ import annotations

import math
from itertools import accumulate
from pathlib import Path
from typing import Any

from octavo.durable_files import replacing

_WINDOW_SHARE = 0.04
_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b")
_STYLES = ("-", "--", ":", "-.")
"""Line styles. Once all colours are used they are used again, with the next style."""


def plot_loss(records: list[dict[str, Any]], path: Path) -> None:
    """Writes the loss over steps, raw and smoothed, with the eval loss where it was measured."""
    figure, axes = _figure(1)
    _draw_loss(axes[0], [r["step"] for r in records], records, "train loss", _look(0))
    evals = [r for r in records if r.get("eval_loss") is not None]
    axes[0].plot(
        [r["step"] for r in evals],
        [r["eval_loss"] for r in evals],
        "o-",
        color=_COLOURS[1],
        label="eval loss",
    )
    axes[0].set_xlabel("step")
    _save(figure, axes, path)


def plot_comparison(runs: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Writes two panels for several plans: loss over steps, and loss over the bytes that a rank sent."""
    figure, axes = _figure(2)
    for index, (plan, records) in enumerate(runs.items()):
        _draw_loss(axes[0], [r["step"] for r in records], records, plan, _look(index))
        sent = [r for r in records if r["wire_bytes_total"] > 0]
        _draw_loss(axes[1], [r["wire_bytes_total"] for r in sent], sent, plan, _look(index))
    axes[0].set_xlabel("step")
    axes[1].set_xlabel("bytes sent per rank")
    axes[1].set_xscale("log")
    _save(figure, axes, path)


def _look(index: int) -> dict[str, str]:
    """Returns the colour and the style of the lines of run `index`."""
    turn, colour = divmod(index, len(_COLOURS))
    return {"color": _COLOURS[colour], "linestyle": _STYLES[turn % len(_STYLES)]}


def _draw_loss(axis: Any, x: list[float], records: list[dict[str, Any]], label: str, look: dict[str, str]) -> None:
    """Draws one run in one panel: the raw loss faintly, and its moving mean over it."""
    points = [(at, r["loss"]) for at, r in zip(x, records, strict=True) if r["loss"] is not None]
    places, losses = [p[0] for p in points], [p[1] for p in points]
    axis.plot(places, losses, color=look["color"], alpha=0.25, linewidth=0.8)
    axis.plot(places, _smooth(losses), **look, linewidth=1.6, label=label)


def _smooth(values: list[float]) -> list[float]:
    """Returns means over a window around each value, so that the curve does not lag behind."""
    reach, count = max(1, round(_WINDOW_SHARE * len(values) / 2)), len(values)
    # Sums of all values so far: a sum of each window would take minutes for a million steps. They are exact integers,
    # because a huge value would take the digits of those that come after it.
    parts = 2**40
    sums = list(accumulate((int(value * parts) if math.isfinite(value) else 0 for value in values), initial=0))
    holes = list(accumulate((not math.isfinite(value) for value in values), initial=0))
    windows = [(max(0, at - reach), min(count, at + reach + 1)) for at in range(count)]
    return [math.nan if holes[b] != holes[a] else (sums[b] - sums[a]) / (parts * (b - a)) for a, b in windows]


def _figure(panels: int) -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # takes most of a second, and only rank 0 draws

    figure = Figure(figsize=(7 * panels, 4.5))
    axes = figure.subplots(1, panels, squeeze=False, sharey=True)
    axes[0][0].set_ylabel("loss (nats per token)")
    return figure, axes[0]


def _save(figure: Any, axes: Any, path: Path) -> None:
    for axis in axes:
        axis.grid(alpha=0.3)
        axis.legend()
    figure.tight_layout()
    with replacing(path) as file:
        figure.savefig(file, dpi=110, format="png")
