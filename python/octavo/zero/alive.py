# SPDX-License-Identifier: Apache-2.0
"""Hooks that do not keep whose they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakMethod


def while_alive(method: Callable[..., None]) -> Callable[..., None]:
    """For hooks of parameters and optimizers, which outlive an engine that nobody has: what autograd keeps in a
    parameter no collection of garbage sees."""
    weak = WeakMethod(method)

    def call(*arguments: Any) -> None:
        alive = weak()
        if alive is not None:
            alive(*arguments)

    return call
