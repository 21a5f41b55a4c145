# SPDX-License-Identifier: Apache-2.0
"""The backend of ``torch.compile`` for a model under ZeRO."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch_config
from torch._inductor.compile_fx import compile_fx
from torch._inductor.custom_graph_pass import CustomPartitionerFn
from torch.fx import GraphModule

from octavo import _C
from octavo.hooks import while_alive
from octavo.zero.all_or_none import Result, on_all_ranks
from octavo.zero.compile_config import CompileConfig
from octavo.zero.compiled.device import Device
from octavo.zero.compiled.graph import Profile, ZeroGraph
from octavo.zero.compiled.lowering import (
    Compile,
    Lowered,
    inductor_compiler,
    inductor_options,
    require_code_for,
    run_as_is,
)
from octavo.zero.compiled.measure import Measured, greatest_of
from octavo.zero.compiled.memory import Memory
from octavo.zero.compiled.on_host import OnHost
from octavo.zero.compiled.partition import mark_parameters, partition
from octavo.zero.compiled.pass_checks import edit_checked
from octavo.zero.compiled.passes import (
    BUILT_IN,
    Contract,
    Edit,
    Pass,
    Schedule,
    Setting,
    default_schedule,
    require_sound,
)
from octavo.zero.compiled.variants import Variants, has_hooks
from octavo.zero.peers import Peers


@dataclass(eq=False)
class _Graph:
    lowered: Lowered
    view: Callable[[GraphModule], ZeroGraph]
    structure: str
    name: str
    is_backward: bool


def require_compilable(config: CompileConfig, setting: Setting) -> None:
    """Raises ValueError where graphs cannot be compiled as the config says."""
    if config.backend == "inductor":
        require_code_for(setting.device)
    require_sound(_first_schedule(config, setting), BUILT_IN, setting)


def _first_schedule(config: CompileConfig, setting: Setting) -> Schedule:
    return config.schedule if config.schedule is not None else default_schedule(setting.stage)


class ZeroCompiler:
    """Turns the graphs that Dynamo finds in a model into graphs that gather and reduce. Each engine has one. Not
    thread-safe."""

    def __init__(
        self,
        engine: _C.Engine,
        ids: Mapping[nn.Parameter, int],
        transfer_bytes: int,
        config: CompileConfig,
        setting: Setting,
        on_host: OnHost,
        peers: Peers,
    ):
        self._engine, self._ids, self._config, self._peers = engine, ids, config, peers
        self._setting, self._on_host = setting, on_host
        self._transfer_bytes, self._device = transfer_bytes, Device(setting.device, engine)
        self._passes: dict[str, Pass] = dict(BUILT_IN)
        self._graphs: list[_Graph] = []
        self._schedule: Schedule = ()
        self._names: Sequence[str] = ()
        self.set_schedule(_first_schedule(config, setting))
        self._profiles: dict[str, Profile] = {}
        self._shared: set[str] = set()  # the structures of the graphs that all ranks ran in the measured step
        self._memory = Memory()
        self._is_measuring = False

    # ---- passes and their schedule

    def register_pass(self, name: str, edit: Edit, contract: Contract) -> None:
        where = "[zero.register_compile_pass]"
        if not isinstance(name, str) or not name or not callable(edit) or not isinstance(contract, Contract):
            raise TypeError(f"{where} expected a name, a function and a Contract, got {name!r}, {edit!r}, {contract!r}")
        if name in self._passes:
            raise ValueError(f"{where} there is a pass {name!r} already")
        self._passes[name] = Pass(edit, contract)

    def set_schedule(self, schedule: Schedule) -> None:
        if self._graphs:
            raise ValueError(
                "[zero.set_compile_schedule] graphs are already compiled with the earlier schedule: call this before "
                "the first forward pass"
            )
        require_sound(schedule, self._passes, self._setting)
        self._schedule, self._names = schedule, schedule[0][1]

    def begin_step(self, step: int) -> None:
        """Is called between two steps, by all ranks; ``step`` is the number of steps that were made. Where it fails on
        a rank, it raises on all ranks what ``on_all_ranks`` raises; after the first step ValueError, where ranks have
        other schedules."""
        if step == 1:
            self._require_same_schedule()
        if self._is_measuring:
            self._finish_measuring(step)
        due = dict(self._schedule).get(step)
        if due is not None and step > 0:
            self._names = due
            kept = set(self._memory.persistent)
            self._memory.take_back_persistent()
            self._on_all_ranks(lambda: self._lower(self._graphs, together=True), f"lower the graphs for step {step}")
            for id in sorted(kept - self._memory.persistent):
                self._engine.set_persistent(id, False)
        following = dict(self._schedule).get(step + 1, ())
        if any(self._passes[name].contract.needs_profile for name in following):
            self._is_measuring = True
            self._on_all_ranks(self._start_measuring_all, f"begin to measure step {step + 1}")

    def _on_all_ranks(self, work: Callable[[], Result], what: str) -> Result:
        return on_all_ranks(work, "zero.compiled", what, self._peers)

    def _require_same_schedule(self) -> None:
        said = self._peers.values(repr(self._schedule), "zero.set_compile_schedule")
        for rank, other in enumerate(said):
            if other != said[0]:
                raise ValueError(
                    f"[zero.set_compile_schedule] all ranks must have the same schedule: rank 0 has {said[0]}, "
                    f"and rank {rank} has {other}"
                )

    def _finish_measuring(self, step: int) -> None:
        self._is_measuring = False
        own = self._on_all_ranks(self._measured, f"finish the measured step {step}")
        self._profiles, self._shared, figures = greatest_of(self._peers.values(own, "zero.compiled"))
        memory, limit_mib = self._memory, self._config.memory_mib
        memory.states = {id: int(figures["states", id]) for id in self._ids.values()}
        memory.shards = {id: int(figures["shards", id]) for id in self._ids.values()}
        memory.copy_s_per_byte = figures["copy_s_per_byte"]
        memory.peak_bytes = max((p.most_allocated_bytes for p in self._profiles.values()), default=0)
        memory.sent = {}
        if limit_mib is not None:
            memory.limit_bytes = int(limit_mib * 2**20)
            most = max(memory.peak_bytes, int(figures["peak_bytes"]))
            unused = max(0, memory.limit_bytes - most + memory.persistent_bytes)  # without what was measured of these
            memory.spare_bytes = unused - memory.persistent_bytes

    def _measured(self) -> Measured:
        """Ends what measures the graphs. Returns what this rank has measured."""
        measured = [(graph.structure, graph.lowered.finish_measuring()) for graph in self._graphs]
        return [(structure, profile) for structure, profile in measured if profile is not None], self._figures()

    def _figures(self) -> dict[Any, float]:
        """Returns the figures of this rank."""
        device = self._device
        figures: dict[Any, float] = {"peak_bytes": device.peak_bytes(), "copy_s_per_byte": device.copy_s_per_byte()}
        for id, states in self._on_host.states().items():
            figures["states", id] = sum(state.nbytes for state in states)
            figures["shards", id] = self._on_host.part_bytes(id)
        return figures

    def _start_measuring_all(self) -> None:
        if not self._device.is_host:
            self._device.take_peak()  # the peak before does not belong to the step
        for graph in self._graphs:
            self._start_measuring(graph)

    def _start_measuring(self, graph: _Graph) -> None:
        take_peak = None if self._device.is_host else self._device.take_peak
        graph.lowered.start_measuring(take_peak, graph.name, self._peers.rank)

    # ---- graphs

    def compile(self, module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """The backend of ``torch.compile``: returns what runs for a graph that Dynamo has found."""
        ids = self._ids_of(inputs)
        places = [i for i, x in enumerate(inputs) if isinstance(x, nn.Parameter)]
        if not places:
            return self._build(module, inputs, ids)
        # also where none is the engine's: Dynamo may give the graph to a layer that has some
        backend = while_alive(self._compile_for_its_own)
        recompile = partial(torch.compile, backend=backend, dynamic=self._config.dynamic)
        variants = Variants(
            module, places, {id(parameter): number for parameter, number in self._ids.items()}, recompile
        )
        variants.add(inputs, self._build(module, inputs, ids))
        return variants

    def _compile_for_its_own(self, module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Does what ``compile`` does for a graph that is never given other parameters."""
        return self._build(module, inputs, self._ids_of(inputs))

    def _ids_of(self, inputs: Sequence[Any]) -> dict[int, int]:
        return {i: self._ids[x] for i, x in enumerate(inputs) if isinstance(x, nn.Parameter) and x in self._ids}

    def _build(self, module: GraphModule, inputs: Sequence[Any], ids: Mapping[int, int]) -> Callable[..., Any]:
        graph_id = self._engine.new_graph_id()
        if ids:
            getattr(self._engine, f"register_graph_z{self._setting.stage}")(graph_id, sorted(ids.values()))
        returned = frozenset(id for i, id in ids.items() if has_hooks(inputs[i]))
        part = partial(partition, ids=ids, graph_id=graph_id, returned=returned, are_gathered=self._setting.stage == 3)
        build = self._build_by_inductor if self._config.backend == "inductor" else self._build_of_aten
        return build(module, inputs, ids, graph_id, part)

    def _build_of_aten(
        self, module: GraphModule, inputs: Sequence[Any], ids: Mapping[int, int], graph_id: int, part: _Part
    ) -> Callable[..., Any]:
        add = while_alive(self._add)

        def compiler(is_backward: bool) -> Callable[..., Any]:
            return lambda graph, _: add(graph, ids, graph_id, is_backward, run_as_is)

        return aot_autograd(
            fw_compiler=compiler(False),
            bw_compiler=compiler(True),
            partition_fn=part,
            keep_inference_input_mutations=True,
        )(module, inputs)

    def _build_by_inductor(
        self, module: GraphModule, inputs: Sequence[Any], ids: Mapping[int, int], graph_id: int, part: _Part
    ) -> Callable[..., Any]:
        add = while_alive(self._add)

        def inner_compile(graph: GraphModule, graph_inputs: Sequence[Any], **options: Any) -> Lowered:
            is_backward = bool(options.get("is_backward", False))
            return add(graph, ids, graph_id, is_backward, inductor_compiler(graph_inputs, options, settings))

        settings = inductor_options(self._setting.stage)
        patches = {**settings, "custom_partitioner_fn": _Partitioner(part)}
        may_reuse = functorch_config.donated_buffer and self._may_reuse_saved_memory()
        with functorch_config.patch(donated_buffer=may_reuse):
            return compile_fx(module, inputs, inner_compile=inner_compile, config_patches=patches)

    def _may_reuse_saved_memory(self) -> bool:
        """Whether generated code may write to the memory of saved values after their last use. It must not where that
        is the host's memory."""
        return not any("offload_activations" in names for _, names in self._schedule)

    def _add(
        self, module: GraphModule, ids: Mapping[int, int], graph_id: int, is_backward: bool, compile: Compile
    ) -> Lowered:
        mark_parameters(module, ids)  # for a pass without gradients, which was not partitioned
        view = partial(
            ZeroGraph,
            graph_id=graph_id,
            stage=self._setting.stage,
            device=self._setting.device,
            is_backward=is_backward,
            transfer_bytes=self._transfer_bytes,
            memory=self._memory,
        )
        seen = view(module)
        graph = _Graph(Lowered(module, compile), view, seen.structure(), seen.name, is_backward)
        self._graphs.append(graph)
        try:
            self._lower([graph])
        except BaseException:
            self._graphs.remove(graph)
            raise
        if self._is_measuring:
            self._start_measuring(graph)
        return graph.lowered

    def _lower(self, graphs: Sequence[_Graph], *, together: bool = False) -> None:
        """Makes the graphs anew by the passes in force. ``together``: whether all ranks do it at the same time.

        Ranks must agree on which parameters stay whole. Therefore passes take none of the memory to spare where ranks
        do not do it together, and in graphs that not all ranks have, such as those of a rank that evaluates by itself.
        """
        views = [graph.view(graph.lowered.copy_original()) for graph in graphs]
        own = replace(self._memory, spare_bytes=0)
        for graph, view in zip(graphs, views, strict=True):
            view.memory = self._memory if together and graph.structure in self._shared else own
            view.profile = self._profiles.get(graph.structure)
            view.later_bytes = self._later_bytes(graph)
        reductions = [view.reductions() for view in views]
        for name in self._names:  # each pass on all graphs before the next pass: they share the memory to spare
            for view, expected in zip(views, reductions, strict=True):
                edit_checked(name, self._passes[name], view, expected)
        for id in sorted(self._memory.persistent):
            self._engine.set_persistent(id)
        if any(self._memory.sent.values()):
            self._on_host.follow()
        for graph, view in zip(graphs, views, strict=True):
            graph.lowered.lower(view.module)

    def _later_bytes(self, graph: _Graph) -> int:
        """Returns the most that was allocated in the backward passes that run after this graph's. Backward passes are
        compiled in the order in which they first run."""
        later = self._graphs[self._graphs.index(graph) + 1 :]
        profiles = [self._profiles.get(other.structure) for other in later if other.is_backward]
        return max((p.most_allocated_bytes for p in profiles if p is not None), default=0)


_Part = Callable[..., tuple[GraphModule, GraphModule]]


class _Partitioner(CustomPartitionerFn):
    def __init__(self, part: _Part):
        self._part = part

    def __call__(
        self, gm: GraphModule, joint_inputs: Sequence[object], **kwargs: Any
    ) -> tuple[GraphModule, GraphModule]:
        return self._part(gm, joint_inputs, **kwargs)

    def uuid(self) -> None:
        """Returns None: Inductor's caches are not used."""
