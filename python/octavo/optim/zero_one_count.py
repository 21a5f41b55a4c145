# SPDX-License-Identifier: Apache-2.0
"""Which kind of step 0/1 Adam makes, and whether the last one has been counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from octavo._C import ZeroOneKind, zero_one_kind

if TYPE_CHECKING:
    from octavo.compression.handle import Handle

VARIANCE, SYNC, LOCAL = ZeroOneKind.variance, ZeroOneKind.sync, ZeroOneKind.local
SCHEDULE = ("var_freeze_step", "var_update_scaler", "local_step_scaler", "local_step_clipper")

_POSITION = ("steps", "overdue")
_SUMS = ("step", "total", "decay")  # what a step that is no variance step changes in the state of a parameter


def kind_at(position: Mapping[str, Any]) -> ZeroOneKind:
    """Returns the kind of the step that follows the ``steps`` of a parameter group, by the group's schedule."""
    kind = zero_one_kind(position["steps"], *(position[name] for name in SCHEDULE))
    return SYNC if kind == LOCAL and position["overdue"] else kind


class StepCount:
    """The step under way, and what is left to do of the one that was counted last; the next one may have begun by then.
    What is saved is in the parameter groups, in all of them the same: ``steps``, the number of steps that were counted,
    and ``overdue``, whether the last sync failed.

    A GradScaler may skip step() on one rank. With a handle, steps are therefore not counted by step(), but before
    whatever is called next (``is_behind``). The handle's numbers of steps tell whether its last step was counted
    already, and whether it was dropped meanwhile.
    """

    def __init__(self) -> None:
        self.kind = VARIANCE  # of the step under way, as it was when its forward pass began
        self.to_make: ZeroOneKind | None = None  # what step() still has to do
        self.is_averaged = False  # whether a handle's updates are the averages of a round that has not ended
        self._noted_step = 0  # the last step of the handle that was counted
        self._dropped_step = 0  # the last step of the handle that was dropped

    def restart(self, handle: Handle | None) -> None:
        """Forgets what is left to do, after a join or a load; the handle's steps so far are not counted."""
        self.to_make, self.is_averaged = None, False
        if handle is not None:
            self._noted_step, self._dropped_step = handle.step, 0

    def is_behind(self, handle: Handle) -> bool:
        """Whether the handle's last step has not been counted yet."""
        return handle.step != self._noted_step

    def catch_up(self, handle: Handle) -> None:
        """Says that the handle's last step has been counted."""
        self._noted_step = handle.step

    def note_drop(self, handle: Handle) -> None:
        """Says that the handle's last step has been dropped."""
        self._dropped_step = handle.step

    def is_dropped(self, handle: Handle) -> bool:
        return handle.step == self._dropped_step

    @contextmanager
    def counted(
        self, groups: Sequence[dict[str, Any]], states: Sequence[dict[str, Any]], finite: bool
    ) -> Iterator[None]:
        """Counts a step of the current kind, which step() makes where it is finite. After an error in the context no
        step is counted, and the sums in ``states`` are as before: a step that found no memory can be made again."""
        before = [{name: state[name] for name in _SUMS} for state in states]
        position = {name: groups[0][name] for name in _POSITION}
        self.to_make = self.kind if finite else None
        set_in_all(groups, steps=position["steps"] + 1, overdue=self.kind == SYNC and not finite)
        try:
            yield
        except BaseException:
            for state, of_one in zip(states, before, strict=True):
                state.update(of_one)
            set_in_all(groups, **position)
            self.to_make = None
            raise


def set_in_all(groups: Sequence[dict[str, Any]], **values: Any) -> None:
    for group in groups:
        group.update(values)
