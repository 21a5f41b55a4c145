# SPDX-License-Identifier: Apache-2.0
"""The backend of ``torch.compile`` for a model under ZeRO."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.compile_fx import compile_fx
from torch._inductor.custom_graph_pass import CustomPartitionerFn
from torch.fx import GraphModule

from octavo import _C
from octavo.accelerator import get_accelerator
from octavo.zero.compile_config import CompileConfig
from octavo.zero.compiled.graph import Memory, Profile, ZeroGraph
from octavo.zero.compiled.lowering import INDUCTOR_OPTIONS, Compile, Lowered, inductor_compiler, run_as_is
from octavo.zero.compiled.measure import agree, require_on_all_ranks
from octavo.zero.compiled.partition import mark_parameters, partition
from octavo.zero.compiled.passes import BUILT_IN, Contract, Edit, Pass, Schedule, default_schedule, require_sound


@dataclass
class _Graph:
    lowered: Lowered
    view: Callable[[GraphModule], ZeroGraph]
    structure: str


class ZeroCompiler:
    """Makes what Dynamo has found of a model into graphs that gather and reduce. One for an engine; not thread-safe."""

    def __init__(
        self,
        engine: _C.Engine,
        ids: Mapping[nn.Parameter, int],
        stage: int,
        transfer_bytes: int,
        config: CompileConfig,
        group: dist.ProcessGroup,
    ):
        self._engine, self._ids, self._stage, self._config, self._group = engine, ids, stage, config, group
        self._transfer_bytes = transfer_bytes
        self._passes: dict[str, Pass] = dict(BUILT_IN)
        self._schedule: Schedule = ()
        self._names: Sequence[str] = ()
        self.set_schedule(config.schedule if config.schedule is not None else default_schedule(stage))
        self._graphs: list[_Graph] = []
        self._profiles: dict[str, Profile] = {}
        self._memory = Memory()
        self._is_measuring = False

    # ---- passes and their schedule

    def register_pass(self, name: str, edit: Edit, contract: Contract) -> None:
        if name in self._passes:
            raise ValueError(f"[zero.register_compile_pass] there is a pass {name!r} already")
        self._passes[name] = Pass(edit, contract)

    def set_schedule(self, schedule: Schedule) -> None:
        require_sound(schedule, self._passes, self._stage, self._config.backend)
        self._schedule, self._names = schedule, schedule[0][1]

    def begin_step(self, step: int) -> None:
        """Between two steps; ``step`` is the number of those that were made. All ranks call it, and where one of them
        fails all do: RuntimeError names it."""
        if self._is_measuring:
            self._finish_measuring()
        due = dict(self._schedule).get(step)
        if due is not None and step > 0:
            self._names = due
            require_on_all_ranks(lambda: self._lower(self._graphs), f"lower the graphs for step {step}", self._group)
        following = dict(self._schedule).get(step + 1, ())
        if any(self._passes[name].contract.needs_profile for name in following):
            self._is_measuring = True
            for graph in self._graphs:
                graph.lowered.start_measuring()

    def _finish_measuring(self) -> None:
        self._is_measuring = False
        measured = {graph.structure: graph.lowered.finish_measuring() for graph in self._graphs}
        profiles = {structure: profile for structure, profile in measured.items() if profile is not None}
        self._profiles, peak_bytes = agree(profiles, get_accelerator().max_memory_allocated(), self._group)
        if self._config.memory_mib is not None:
            self._memory.spare_bytes = max(0, int(self._config.memory_mib * 2**20) - peak_bytes)

    # ---- graphs

    def __call__(self, module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        ids = {i: self._ids[x] for i, x in enumerate(inputs) if isinstance(x, nn.Parameter) and x in self._ids}
        graph_id = self._engine.new_graph_id()
        if ids:
            getattr(self._engine, f"register_graph_z{self._stage}")(graph_id, sorted(ids.values()))
        build = self._build_by_inductor if self._config.backend == "inductor" else self._build_of_aten
        return build(module, inputs, ids, graph_id)

    def _build_of_aten(
        self, module: GraphModule, inputs: Sequence[Any], ids: Mapping[int, int], graph_id: int
    ) -> Callable[..., Any]:
        def compiler(is_backward: bool) -> Callable[..., Any]:
            return lambda graph, _: self._add(graph, ids, graph_id, is_backward, run_as_is)

        return aot_autograd(
            fw_compiler=compiler(False),
            bw_compiler=compiler(True),
            partition_fn=partial(partition, ids=ids, graph_id=graph_id),
        )(module, inputs)

    def _build_by_inductor(
        self, module: GraphModule, inputs: Sequence[Any], ids: Mapping[int, int], graph_id: int
    ) -> Callable[..., Any]:
        def inner_compile(graph: GraphModule, graph_inputs: Sequence[Any], **options: Any) -> Lowered:
            is_backward = bool(options.get("is_backward", False))
            return self._add(graph, ids, graph_id, is_backward, inductor_compiler(graph_inputs, options))

        options = {**INDUCTOR_OPTIONS, "custom_partitioner_fn": _Partitioner(ids, graph_id)}
        return compile_fx(module, inputs, inner_compile=inner_compile, config_patches=options)

    def _add(
        self, module: GraphModule, ids: Mapping[int, int], graph_id: int, is_backward: bool, compile: Compile
    ) -> Lowered:
        mark_parameters(module, ids)  # those of a pass without gradients, which was not partitioned
        view = partial(
            ZeroGraph,
            graph_id=graph_id,
            is_backward=is_backward,
            transfer_bytes=self._transfer_bytes,
            memory=self._memory,
        )
        graph = _Graph(Lowered(module, compile), view, view(module).structure())
        self._graphs.append(graph)
        self._lower([graph])
        if self._is_measuring:
            graph.lowered.start_measuring()
        return graph.lowered

    def _lower(self, graphs: Sequence[_Graph]) -> None:
        views = [graph.view(graph.lowered.copy_original()) for graph in graphs]
        for graph, view in zip(graphs, views, strict=True):
            view.profile = self._profiles.get(graph.structure)
        for name in self._names:  # one after another on all of them: they share the memory that is to spare
            for view in views:
                self._passes[name].edit(view)
        for id in sorted(self._memory.persistent):
            self._engine.set_persistent(id)
        for graph, view in zip(graphs, views, strict=True):
            graph.lowered.lower(view.module)


class _Partitioner(CustomPartitionerFn):
    def __init__(self, ids: Mapping[int, int], graph_id: int):
        self._ids, self._graph_id = ids, graph_id

    def __call__(
        self, gm: GraphModule, joint_inputs: Sequence[object], **kwargs: Any
    ) -> tuple[GraphModule, GraphModule]:
        return partition(gm, joint_inputs, ids=self._ids, graph_id=self._graph_id, **kwargs)

    def uuid(self) -> None:
        """Inductor's caches are not used."""
