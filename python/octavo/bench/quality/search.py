# SPDX-License-Identifier: Apache-2.0
"""The search over hyperparameters: one knob at a time, and the same number of trials for every contender.

A search is a list of knobs to move, one per trial after the first. A move takes the best point so far and changes one
knob by one place of its ladder: in the knob's first direction, or in the other one where that value was tried before.
So the second move of a knob continues in the same direction where the first one helped, and reverses its direction
where it did not. The next point is a pure function of the losses so far, so an interrupted search continues with
exactly the trials of an unbroken one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Point = dict[str, float]
"""Values by the name of the option of `octavo train`, such as `lr`."""


@dataclass(frozen=True)
class Knob:
    """The values that a knob can take, in order; the value at which a search starts; and the direction of its first
    move."""

    ladder: tuple[float, ...]
    start: float
    first: int  # +1 or -1: the direction of the first move


#: A move of `lr` is a factor of 1.5, one of `outer_lr` of about 1.4.
KNOBS = {
    "lr": Knob((1.35e-3, 2e-3, 3e-3, 4.5e-3, 6.75e-3, 1e-2, 1.5e-2, 2.25e-2), start=3e-3, first=+1),
    "beta1": Knob((0.0, 0.3, 0.5, 0.9, 0.95, 0.98), start=0.9, first=-1),
    "beta2": Knob((0.95, 0.98, 0.999, 0.9999), start=0.999, first=-1),
    "outer_lr": Knob((0.5, 0.7, 1.0, 1.4), start=1.0, first=+1),
}


@dataclass(frozen=True)
class Trial:
    """A point and the loss that it gave; infinity where training diverged."""

    point: Point
    loss: float


def best(trials: Sequence[Trial]) -> Trial:
    """Returns the trial with the smallest loss, the earliest one among equals. Raises ValueError where there is
    none."""
    return min(trials, key=lambda trial: trial.loss)


def next_point(moves: Sequence[str], trials: Sequence[Trial], start: Mapping[str, float]) -> Point | None:
    """Returns the point to try after `trials`, which are in the order of the search; None once every move is made.

    `start`: the first values of knobs that do not begin where `KNOBS` says.
    """
    if not trials:
        return {name: start.get(name, KNOBS[name].start) for name in dict.fromkeys(("lr", "beta1", "beta2", *moves))}
    if len(trials) > len(moves):
        return None
    name = moves[len(trials) - 1]
    center = best(trials).point
    return {**center, name: _neighbour(KNOBS[name], center[name], {trial.point[name] for trial in trials})}


def _neighbour(knob: Knob, value: float, tried: set[float]) -> float:
    at = knob.ladder.index(value)
    for place in (at + knob.first, at - knob.first):
        if 0 <= place < len(knob.ladder) and knob.ladder[place] not in tried:
            return knob.ladder[place]
    raise ValueError(f"[bench.quality.search] the ladder {knob.ladder} has no untried value beside {value}")
