# SPDX-License-Identifier: Apache-2.0
"""How far an engine has come: in the micro-batches of a step, in steps, and whether an error has ended it."""

from __future__ import annotations


class Progress:
    """Counts micro-batches and steps. Raises RuntimeError or ValueError for a call that does not come in its turn, or
    that comes after an error which has left the engine's values half changed."""

    def __init__(self, accumulation_steps: int):
        self.steps = 0  # that were made
        self._in_a_step = accumulation_steps
        self._micro_batches = 0  # of this step, whose gradients have been added up
        self._failure: str | None = None

    @property
    def is_last_micro_batch(self) -> bool:
        """Whether the next micro-batch is the last one of a step."""
        return (self._micro_batches + 1) % self._in_a_step == 0

    @property
    def has_gradients(self) -> bool:
        """Whether the gradients of a step are complete, and its step was not made yet."""
        return self._micro_batches == self._in_a_step

    def require_next_micro_batch(self) -> None:
        self.require_usable("backward")
        if self.has_gradients:
            raise RuntimeError(
                "[zero.backward] the last micro-batch of this step was already processed: call step() or "
                "drop_gradients() before the next one, or give octavo.initialize accumulation_steps"
            )

    def count_micro_batch(self) -> None:
        self._micro_batches += 1

    def count_step(self) -> None:
        self.steps += 1

    def end_gradients(self) -> bool:
        """Begins a step anew, without gradients. Returns whether there were any."""
        had_some = self._micro_batches > 0
        self._micro_batches = 0
        return had_some

    def fail(self, error: BaseException) -> None:
        """Refuses everything from now on, because of ``error``."""
        self._failure = f"{type(error).__name__}: {error}"

    def require_usable(self, what: str) -> None:
        """Raises RuntimeError where an error has ended the engine."""
        if self._failure is not None:
            raise RuntimeError(
                f"[zero.{what}] an earlier error stopped this engine in the middle of an operation; start again from a "
                f"checkpoint, with a new model, optimizer and engine. The error was {self._failure}"
            )

    def require_between_steps(self, what: str) -> None:
        """Raises ValueError where there are gradients of a step that was not made yet."""
        self.require_usable(what)
        if self.has_gradients:
            raise ValueError(
                f"[zero.{what}] backward() has computed the gradients of a step that was not made yet: call step() or "
                f"drop_gradients() first"
            )
        if self._micro_batches > 0:
            raise ValueError(
                f"[zero.{what}] {self._micro_batches} of {self._in_a_step} micro-batches of a step have been added up: "
                f"call it between steps"
            )
