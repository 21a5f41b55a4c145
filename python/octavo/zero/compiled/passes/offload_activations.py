# SPDX-License-Identifier: Apache-2.0
"""Keeps on the host what a forward pass saves for its backward pass."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch.fx import Node

from octavo.zero.compiled.graph import ZeroGraph, size_bytes, users
from octavo.zero.compiled.partition import SAVED

_OFFLOAD, _RELOAD = torch.ops.dc.offload_tensor.default, torch.ops.dc.reload_tensor.default


def offload_activations(graph: ZeroGraph) -> None:
    """Moves saved values of some MiB to the host and back. The copy away begins after a value's last use in the forward
    pass, and the copy back before its first use in the backward pass. At first it moves all of them; once a step was
    measured, the largest stay on the device as far as there is memory to spare."""
    saved = {node.meta[SAVED]: node for node in graph.nodes if node.meta.get(SAVED) is not None}
    for number, node in _moving(graph, saved).items():
        if graph.is_backward:
            _bring_back(graph, node, number)
        else:
            _send(graph, node, number)
    if graph.is_backward:
        _start_one_ahead(graph)
    else:
        _finish_one_behind(graph)


def _moving(graph: ZeroGraph, saved: dict[int, Node]) -> dict[int, Node]:
    moving: dict[int, Node] = {}
    for number, node in sorted(saved.items(), key=lambda item: -size_bytes(item[1])):
        if size_bytes(node) < graph.memory.min_offload_bytes or node.meta["val"].device.type != graph.device:
            continue
        name = (graph.graph_id, number)
        if name in graph.memory.staying:
            continue
        if graph.profile is not None and not graph.is_backward and size_bytes(node) <= graph.memory.spare_bytes:
            graph.memory.spare_bytes -= size_bytes(node)
            graph.memory.staying.add(name)
        else:
            moving[number] = node
    return moving


def _send(graph: ZeroGraph, node: Node, number: int) -> None:
    """Copies a value to the host and gives the host's memory to the backward pass. What reads it there waits for the
    copy."""
    output = graph.module.graph.output_node()
    last = next(n for n in reversed(graph.nodes) if n is node or n in users(node))
    arguments = (node, graph.graph_id, number)
    on_host = graph.insert(last.next, _OFFLOAD, arguments, torch.empty_like(node.meta["val"]))
    output.replace_input_with(node, on_host)


def _finish_one_behind(graph: ZeroGraph) -> None:
    """Inserts the end of each copy where the next copy begins. Inductor may use a value's memory again after its last
    reader, while the copy still goes on beside the graph. Nothing changes values there, so it does not matter when
    others read them."""
    sent = graph.calls(_OFFLOAD)
    for node, following in pairwise([*sent, graph.module.graph.output_node()]):
        graph.insert(following, torch.ops.dc.finish_offload.default, node.args)


def _bring_back(graph: ZeroGraph, node: Node, number: int) -> None:
    using = users(node)
    first = next(n for n in graph.nodes if n in using)
    there = graph.insert(first, _RELOAD, (node, graph.graph_id, number), torch.empty_like(node.meta["val"]))
    graph.insert(first, torch.ops.dc.finish_reload.default, (there, graph.graph_id, number))
    for user in using:
        user.replace_input_with(node, there)


def _start_one_ahead(graph: ZeroGraph) -> None:
    """Moves the begin of each copy to where the copy before it is complete."""
    waits = graph.calls(torch.ops.dc.finish_reload.default)
    for before, wait in pairwise(waits):
        before.append(wait.args[0])
