# SPDX-License-Identifier: Apache-2.0
"""Hooks that do not keep whose they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakMethod


def while_alive(method: Callable[..., None]) -> Callable[..., None]:
    """For hooks of parameters, modules and optimizers, which must not keep an engine or optimizer that nobody else has:
    what autograd keeps in a parameter no collection of garbage sees."""
    weak = WeakMethod(method)

    def call(*arguments: Any) -> None:
        alive = weak()
        if alive is not None:
            alive(*arguments)

    return call
