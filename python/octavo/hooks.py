# SPDX-License-Identifier: Apache-2.0
"""Hooks that do not keep the object alive whose method they call. Once it is gone, they do nothing or are removed. In a
copy of their model they do nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from weakref import WeakMethod, finalize

from torch import Tensor
from torch.utils.hooks import RemovableHandle


def while_alive(method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that calls ``method`` as long as the object of the method is alive. Once the object is gone,
    the function does nothing and returns None.

    It is for hooks of parameters, modules and optimizers, and for what Dynamo keeps. Such a hook must not keep an
    engine or an optimizer alive that nobody else refers to: the garbage collector does not see what autograd keeps in a
    parameter.
    """
    weak = WeakMethod(method)

    def call(*arguments: Any) -> Any:
        alive = weak()
        return None if alive is None else alive(*arguments)

    return call


def remove_after(owner: object, handles: Iterable[RemovableHandle]) -> None:
    """Removes these hooks once ``owner`` is gone."""
    finalize(owner, _remove, list(handles)).atexit = False


def _remove(handles: list[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()


def has_hooks_of_others(parameter: Tensor) -> bool:
    """Whether a parameter of an engine has hooks of ``register_post_accumulate_grad_hook`` besides the engine's. torch
    has no public way to ask."""
    return len(parameter._post_accumulate_grad_hooks or ()) > 1


class OwnHook(partial):
    """A hook that belongs to one model. In a copy of the model, or in one that was saved whole, it does nothing."""

    def __reduce__(self) -> tuple[type, tuple[Callable[..., None]]]:
        return partial, (_do_nothing,)


def _do_nothing(*_: Any) -> None:
    pass
