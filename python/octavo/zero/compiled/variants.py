# SPDX-License-Identifier: Apache-2.0
"""Graphs that Dynamo gives to other parameters than those that they were compiled for, or to ones with other hooks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn
from torch.fx import GraphModule

from octavo.hooks import has_hooks_of_others


class Variants:
    """Runs a graph that Dynamo has found, by what was compiled of it for the parameters that it is given.

    Dynamo's guards look at the shapes of parameters, and not at which ones they are. Where a break makes it compile
    layers one by one, it takes the graph of one layer for the next. Gathers and reductions name their parameters, so
    that each layer needs one of its own. It is compiled when it is first needed. Nor do the guards look at hooks of
    parameters: a graph returns the gradients of those that have some.

    - ``places``: of the parameters among the inputs.
    - ``numbers``: the engine's parameters, by ``id()``; all others are alike.
    - ``compile``: is called with a copy of the graph for each further set of parameters and of those that have hooks.
    """

    def __init__(
        self,
        graph: GraphModule,
        places: Sequence[int],
        numbers: Mapping[int, int],
        compile: Callable[[GraphModule], Callable[..., Any]],
    ):
        self._graph, self._places, self._compile = _copied(graph), places, compile  # backends may change the graph
        self._numbers = numbers
        self._of_parameters: dict[_Key, Callable[..., Any]] = {}

    def add(self, inputs: Sequence[Any], run: Callable[..., Any]) -> None:
        """Makes ``run`` what runs for the parameters among these inputs."""
        self._of_parameters[self._key(inputs)] = run

    def __call__(self, *inputs: Any) -> Any:
        run = self._of_parameters.get(self._key(inputs))
        if run is None:
            run = self._compile(_copied(self._graph))
            self.add(inputs, run)
        return run(*inputs)

    def _key(self, inputs: Sequence[Any]) -> _Key:
        parameters = [inputs[place] for place in self._places]
        numbers = tuple(self._numbers.get(id(parameter)) for parameter in parameters)
        return numbers, tuple(map(has_hooks, parameters))


_Key = tuple[tuple[int | None, ...], tuple[bool, ...]]


def has_hooks(parameter: nn.Parameter) -> bool:
    """Whether the user has put hooks on a parameter, which see its gradient before it is reduced. The engine has one
    hook of its own there."""
    return bool(parameter._backward_hooks) or has_hooks_of_others(parameter)


def _copied(graph: GraphModule) -> GraphModule:
    """Returns a graph with code of its own, which Dynamo caches by, and without the tensors of the trace."""
    copied = GraphModule(graph, copy.deepcopy(graph.graph))
    for node in copied.graph.nodes:
        node.meta = {}
    return copied
