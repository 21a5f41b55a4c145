# SPDX-License-Identifier: Apache-2.0
"""Measures what a graph's nodes cost in one real step, which counts as any other step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Interpreter, Node
from torch.utils._pytree import tree_leaves

from octavo.zero.compiled.graph import Profile, key

_SEEDED = {"prims::inductor_random", "prims::inductor_randint"}


class Measuring(Interpreter):
    """Runs a graph node by node. On a device it waits for each node, so that the node's time is its own.

    - ``take_peak``: returns the most bytes that the device had allocated since its last call.
    - ``graph``, ``rank``: what errors name.
    """

    def __init__(
        self,
        module: torch.fx.GraphModule,
        take_peak: Callable[[], int] | None = None,
        graph: str = "the graph",
        rank: int = 0,
    ):
        super().__init__(module)
        self.extra_traceback = False  # errors are explained here
        self._take_peak, self._graph, self._rank = take_peak, graph, rank
        self._allocated_bytes: dict[str, int] = {}
        self._seconds: dict[str, float] = {}
        self._live_bytes: dict[str, int] = {}
        self._holders: dict[int, int] = {}  # by storage: how many live values use it
        self._bytes: dict[int, int] = {}
        self._sum_bytes = 0

    @property
    def profile(self) -> Profile:
        return Profile(dict(self._seconds), dict(self._live_bytes), dict(self._allocated_bytes))

    def boxed_run(self, args_list: list[Any]) -> Any:
        self._holders, self._bytes, self._sum_bytes = {}, {}, 0
        try:
            return super().boxed_run(args_list)
        finally:
            self.env.clear()  # which has the results, or what there was before an error

    def run_node(self, n: Node) -> Any:
        try:
            return self._measure(n)
        except Exception as error:
            explanation = self._explanation(n, error)
            if error.args and not isinstance(error.args[0], str):  # as the number of an OSError
                raise RuntimeError(explanation) from error
            error.args = (explanation, *error.args[1:])
            raise

    def _explanation(self, n: Node, error: Exception) -> str:
        """Returns what an error is to say: that it is of a measured step, and on which rank. Other ranks wait in their
        transfers for a rank that fails, and do not know why it stays away."""
        said = str(error)
        if said.startswith("[comm."):
            return (
                f"{said}. It happened in the measured step, which runs graphs node by node: where another rank has "
                f"failed in it, its own error says so"
            )
        if said.startswith("["):
            return said
        return (
            f"[zero.compiled] rank {self._rank} has failed in the measured step, in {self._graph}, at {n.name}: "
            f"{type(error).__name__}: {said}. Ranks that have not failed wait for this one, and fail too. A measured "
            f"step runs graphs node by node, by aten's own operators; where that takes too much memory, give a "
            f"schedule whose passes need no measured step"
        )

    def _measure(self, n: Node) -> Any:
        if n.op in ("placeholder", "output"):
            return super().run_node(n)
        self._live_bytes[key(n)] = self._sum_bytes
        before = self._take_peak() if self._take_peak is not None else 0
        started = time.perf_counter()
        value = super().run_node(n)
        if torch.accelerator.is_available() and any(_is_on_device(leaf) for leaf in tree_leaves(value)):
            torch.accelerator.synchronize()
        self._seconds[key(n)] = time.perf_counter() - started
        if self._take_peak is not None:
            self._allocated_bytes[key(n)] = max(before, self._take_peak())
        self._count(value, 1)
        for last_used in self.user_to_last_uses.get(n, []):
            if last_used.op != "placeholder":
                self._count(self.env[last_used], -1)
        return value

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls Inductor's random operators with the generator set to the seed that they are given. Run one by one they
        ignore the seed, by which the backward pass must draw again what the forward pass has drawn."""
        if not (isinstance(target, torch._ops.OpOverload) and target.name() in _SEEDED):
            return super().call_function(target, args, kwargs)
        seed = next(value for value in args if isinstance(value, Tensor))
        devices = [] if seed.device.type == "cpu" else [seed.device]
        with torch.random.fork_rng(devices, device_type=seed.device.type if devices else "cuda"):
            if devices:
                torch.manual_seed(int(seed))
            else:  # which would set the seeds of devices, too
                torch.default_generator.manual_seed(int(seed))
            return super().call_function(target, args, kwargs)

    def _count(self, value: Any, holders: int) -> None:
        for tensor in tree_leaves(value):
            if not isinstance(tensor, Tensor):
                continue
            storage = tensor.untyped_storage()
            before = self._holders.get(storage._cdata, 0)
            self._holders[storage._cdata] = before + holders
            if before == 0:
                self._bytes[storage._cdata] = storage.nbytes()
                self._sum_bytes += storage.nbytes()
            elif before + holders == 0:
                self._sum_bytes -= self._bytes[storage._cdata]


Measured = tuple[list[tuple[str, Profile]], dict[Any, float]]
"""What a rank has measured: profiles of graphs, each with the graph's structure, and other figures."""


def greatest_of(of_all: Sequence[Measured]) -> tuple[dict[str, Profile], set[str], dict[Any, float]]:
    """Returns the greatest figures of all ranks, so that what is decided by them is equal on all: the profiles of
    graphs by their structure, which several graphs may share; the structures that all ranks have; and the other
    figures."""
    agreed: dict[str, Profile] = {}
    greatest: dict[Any, float] = {}
    for of_rank, own_figures in of_all:
        greatest = _greatest(greatest, own_figures)
        for structure, profile in of_rank:
            before = agreed.get(structure, Profile({}, {}))
            agreed[structure] = Profile(
                _greatest(before.seconds, profile.seconds),
                _greatest(before.live_bytes, profile.live_bytes),
                _greatest(before.allocated_bytes, profile.allocated_bytes),
            )
    shared = set.intersection(*({structure for structure, _ in of_rank} for of_rank, _ in of_all))
    return agreed, shared, greatest


def _greatest(one: Any, other: Any) -> dict[Any, Any]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in {**one, **other}}


def _is_on_device(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type != "cpu"
