# SPDX-License-Identifier: Apache-2.0
"""What hooks of modules need: how they are called, what a module has and returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from octavo.hooks import OwnHook, while_alive
from octavo.optim.base import not_compiled


def let_last_be_first(hooks: dict[int, Any]) -> None:
    """Lets the hook that was added last be called before the others. torch calls them in the order of insertion."""
    if len(hooks) > 1:
        last = hooks.popitem()
        others = list(hooks.items())
        hooks.clear()
        hooks.update([last, *others])


def is_in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def own_hook(method: Callable[..., None], *given: Any) -> OwnHook:
    """Returns the hook of a module that calls ``method``, unless Dynamo traces the module, as long as the method's
    object is alive."""
    from torch._dynamo.eval_frame import skip_code  # takes a second, which other uses of this file need not wait for

    call = not_compiled(while_alive(method))

    def hook(*arguments: Any) -> None:
        if not torch.compiler.is_compiling():  # first, since Dynamo does not see through a weak reference
            call(*given, *arguments)

    # Where Dynamo runs a module without a graph, it would compile this function by itself, which then finds itself
    # being compiled.
    skip_code(hook.__code__)
    return OwnHook(hook)


def memory_of(tensor: Tensor) -> int | None:
    """Returns what identifies the memory of a tensor; None for one that torch.func has made, which has none."""
    if tensor.layout == torch.jagged:  # nested: a tensor of all values, with offsets
        tensor = tensor.values()
    try:
        return tensor.untyped_storage()._cdata
    except NotImplementedError:
        return None


def tensors_in(output: object) -> Iterator[Tensor]:
    """Yields the tensors of what a module returns, which may be in containers and dataclasses."""
    for leaf in [output] if isinstance(output, Tensor) else tree_leaves(output):
        if isinstance(leaf, Tensor):
            yield leaf
        elif is_dataclass(leaf) and not isinstance(leaf, type):
            yield from tensors_in([getattr(leaf, field.name, None) for field in fields(leaf)])


def parameters_used_by(module: nn.Module) -> Iterator[nn.Parameter]:
    """Yields the parameters of a module, and those of children that it reads without calling them: lists of parameters,
    and the last layer of a torch.nn.MultiheadAttention."""
    yield from module.parameters(recurse=False)
    for child in module.children():
        if isinstance(child, nn.ParameterList | nn.ParameterDict):
            yield from child.parameters()
        elif isinstance(child, nn.modules.linear.NonDynamicallyQuantizableLinear):
            yield from child.parameters(recurse=False)
