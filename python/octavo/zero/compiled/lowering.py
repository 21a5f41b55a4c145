# SPDX-License-Identifier: Apache-2.0
"""Turns a graph into what runs, anew for each step of the schedule, without Dynamo and without tracing."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch._inductor import config as inductor_config
from torch._inductor.codegen.common import get_scheduling_for_device, init_backend_registration
from torch._inductor.compile_fx import compile_fx_inner
from torch._inductor.virtualized import V
from torch.fx import GraphModule

from octavo.zero.compiled.graph import Profile
from octavo.zero.compiled.measure import Measuring

Runner: TypeAlias = Callable[[list[Any]], Any]  # takes its inputs out of the list that it is called with
Compile: TypeAlias = Callable[[GraphModule], Runner]


def inductor_options(stage: int) -> dict[str, Any]:
    """Returns the settings of Inductor for graphs of this stage of ZeRO."""
    return {
        "fx_graph_cache": False,  # graphs have ids of this process in them
        "reorder_for_peak_memory": False,  # passes have put transfers at their places
        # it copies the weight of a convolution to channels_last where it enters the graph: before it is gathered
        "layout_optimization": stage < 3 and inductor_config.layout_optimization,
    }


class Lowered:
    """A graph that AOT autograd calls. It runs what the passes have last made of it."""

    def __init__(self, module: GraphModule, compile: Compile):
        self._boxed_call = True  # tells AOT autograd that it is a Runner
        self._original = GraphModule(module, copy.deepcopy(module.graph))
        self._compile = compile
        self._module = module
        self._run: Runner | None = None
        self._measuring: Measuring | None = None

    def copy_original(self) -> GraphModule:
        return GraphModule(self._original, copy.deepcopy(self._original.graph))

    def lower(self, module: GraphModule) -> None:
        module.graph.lint()
        module.recompile()
        self._module = GraphModule(module, copy.deepcopy(module.graph))  # compilers edit what they get
        self._run = self._compile(module)

    def __call__(self, inputs: list[Any]) -> Any:
        if self._measuring is not None:
            return self._measuring.boxed_run(inputs)
        return self._run(inputs)

    def start_measuring(self, take_peak: Callable[[], int] | None, graph: str, rank: int) -> None:
        """``graph``, ``rank``: what errors name."""
        self._measuring = Measuring(self._module, take_peak, graph, rank)

    def finish_measuring(self) -> Profile | None:
        """Returns the figures of the measured step; None where the graph did not run."""
        measuring, self._measuring = self._measuring, None
        profile = None if measuring is None else measuring.profile
        return profile if profile is not None and profile.seconds else None


def require_code_for(device: str) -> None:
    """Raises ValueError where Inductor generates no code for the device. Inductor itself finds out only in the first
    forward pass."""
    init_backend_registration()
    if get_scheduling_for_device(device) is None:
        raise ValueError(
            f'[zero.initialize] Inductor has no code for {device}: give "compile": "aot_eager", whose graphs run '
            "aten's operators"
        )


def run_as_is(module: GraphModule) -> Runner:
    """Returns a function that runs the graph by aten's own operators. The graph's own code takes the inputs out of
    their list, and drops each after its last use. As arguments of a call they would be kept until its end."""
    graph, placeholders = module.graph, list(module.graph.find_nodes(op="placeholder"))
    with graph.inserting_before(next(iter(graph.nodes))):
        box = graph.placeholder("box")
        taken = [graph.call_function(operator.getitem, (box, i)) for i in range(len(placeholders))]
        graph.call_method("clear", (box,))
    for placeholder, value in zip(placeholders, taken, strict=True):
        placeholder.replace_all_uses_with(value)
        graph.erase_node(placeholder)
    module.recompile()
    return module.forward


def inductor_compiler(inputs: Sequence[Any], options: dict[str, Any], settings: dict[str, Any]) -> Compile:
    """Returns a function that compiles a graph by Inductor, with its ``options`` of this graph and its ``settings``. It
    must be made while Inductor compiles the graph for the first time, because it keeps that time's context for
    later."""
    fake_mode, context = V.fake_mode, torch._guards.TracingContext.try_get()

    def compile(module: GraphModule) -> Runner:
        with (
            V.set_fake_mode(fake_mode),
            torch._guards.tracing(context),
            inductor_config.patch(settings),
        ):
            return compile_fx_inner(module, inputs, **options)

    return compile
