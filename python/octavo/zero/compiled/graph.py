# SPDX-License-Identifier: Apache-2.0
"""A graph of aten operators, as passes see it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node

from octavo.zero.compiled.memory import Memory
from octavo.zero.compiled.partition import PARAMETER, insert_token


@dataclass(frozen=True)
class Profile:
    """The figures of one run of a graph, the greatest of all ranks, by ``key`` of the node.

    - ``seconds``: the time that the node took.
    - ``live_bytes``: the bytes of the values that were computed before the node and are still needed at it.
    - ``allocated_bytes``: the most that the device had allocated from the node before, which may be another graph's, to
      the end of this one, as if nothing were on the host. It is not measured on the CPU.
    """

    seconds: Mapping[str, float]
    live_bytes: Mapping[str, int]
    allocated_bytes: Mapping[str, int] = field(default_factory=dict)

    @property
    def peak_bytes(self) -> int:
        return max(self.live_bytes.values(), default=0)

    @property
    def most_allocated_bytes(self) -> int:
        return max(self.allocated_bytes.values(), default=0)


@dataclass
class ZeroGraph:
    """A graph that passes edit.

    - ``module``: what passes edit, and nothing else.
    - ``graph_id``: the id in the graph's operators. A forward pass and its backward pass have the same.
    - ``stage``: the stage of ZeRO.
    - ``device``: the type of the model's device.
    - ``is_backward``: whether it is a backward pass.
    - ``transfer_bytes``: the bytes of parameters that are sent together.
    - ``memory``: the memory of the device, shared by all graphs of a model.
    - ``profile``: the figures of an earlier step; None: none was measured yet.
    - ``later_bytes``: the most that was allocated in the backward passes of graphs that come after this one's.
    """

    module: GraphModule
    graph_id: int
    stage: int
    device: str
    is_backward: bool
    transfer_bytes: int
    memory: Memory
    profile: Profile | None = None
    later_bytes: int = 0

    @property
    def name(self) -> str:
        """What errors call the graph."""
        return f"the {'backward' if self.is_backward else 'forward'} graph {self.graph_id}"

    @property
    def nodes(self) -> list[Node]:
        return list(self.module.graph.nodes)

    @property
    def parameters(self) -> dict[Node, int]:
        """The ids of the parameters that are used, by placeholder, in the order of their first use."""
        place = {node: i for i, node in enumerate(self.nodes)}
        first = {
            node: min(place[user] for user in users(node))
            for node in self.module.graph.find_nodes(op="placeholder")
            if PARAMETER in node.meta and users(node)
        }
        return {node: node.meta[PARAMETER] for node in sorted(first, key=first.__getitem__)}

    def calls(self, target: torch._ops.OpOverload) -> list[Node]:
        return list(self.module.graph.find_nodes(op="call_function", target=target))

    def reductions(self) -> Counter[str]:
        """Returns what the graph does with gradients: how often it hands over that of each parameter, and how often it
        ends the pass."""
        ids = [id for call in self.calls(torch.ops.dc.reduce_grads.default) for id in call.args[3]]
        ends = len(self.calls(torch.ops.dc.finish_backward.default))
        return Counter([f"the gradient of parameter {id}" for id in ids] + ["the end of the pass"] * ends)

    def insert(self, before: Node, target: Callable[..., Any], arguments: tuple[Any, ...], value: Any = None) -> Node:
        """Inserts a call of ``target`` before a node, and returns it. ``value``: a fake tensor, or several, like what
        it returns."""
        with self.module.graph.inserting_before(before):
            node = self.module.graph.call_function(target, arguments)
        node.meta["val"] = value
        return node

    def token(self) -> Node:
        """Inserts a tensor before all that is computed, and returns it. It is for operators whose results the graph
        does not use: they are declared to change the token, which keeps them in the graph."""
        first = next(node for node in self.nodes if node.op != "placeholder")
        like = next(v for v in (node.meta.get("val") for node in self.nodes) if isinstance(v, torch.Tensor))
        with self.module.graph.inserting_before(first):
            return insert_token(self.module.graph, like)

    def structure(self) -> str:
        """Returns a text that is equal for graphs that call the same operators with the same parameters, whatever the
        shapes are."""
        digest = hashlib.sha256(b"backward" if self.is_backward else b"forward")
        for node in self.nodes:
            target = node.target if node.op == "call_function" else ""
            digest.update(f"{node.op} {target} {node.meta.get(PARAMETER, '')} {len(node.all_input_nodes)};".encode())
        return digest.hexdigest()[:16]


def users(node: Node) -> list[Node]:
    """Returns the nodes that compute with this one."""
    return [user for user in node.users if user.op != "output"]


def key(node: Node) -> str:
    """Returns a name of the node that is the same in all lowerings of a graph and on all ranks. Passes insert the calls
    that name parameters in different orders, so these are named by their parameters."""
    for argument in node.args if getattr(node.target, "namespace", "") == "dc" else ():
        if isinstance(argument, list | tuple) and all(isinstance(id, int) for id in argument):
            return f"{node.target} {list(argument)}"
    return node.name


def size_bytes(node: Node) -> int:
    """Returns the bytes of the tensor that a node gives; 0 where it gives none, or where its shape is not known at
    compile time."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not all(isinstance(size, int) for size in value.shape):
        return 0
    return value.numel() * value.element_size()
