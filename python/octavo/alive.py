# SPDX-License-Identifier: Apache-2.0
"""Hooks that do not keep whose they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakMethod


def while_alive(method: Callable[..., Any]) -> Callable[..., Any]:
    """For hooks of parameters, modules and optimizers, and for what Dynamo keeps, which must not keep an engine or
    optimizer that nobody else has: what autograd keeps in a parameter no collection of garbage sees. Nothing is done,
    and None returned, when it is gone."""
    weak = WeakMethod(method)

    def call(*arguments: Any) -> Any:
        alive = weak()
        return None if alive is None else alive(*arguments)

    return call
