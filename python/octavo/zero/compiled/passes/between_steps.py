# SPDX-License-Identifier: Apache-2.0
"""Keeps on the host, while graphs compute, what only the optimizer's step needs."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.fx import Node

from octavo.zero.compiled.graph import ZeroGraph, key


def wait_between_steps(
    graph: ZeroGraph, sent: Mapping[int, int], offload: torch._ops.OpOverload, reload: torch._ops.OpOverload
) -> None:
    """Inserts the calls of ``offload`` and ``reload`` for the parameters in ``sent``, bytes by parameter.

    They are sent away when the forward pass begins. In the backward pass each comes back as soon as there is room for
    it up to the end of all backward passes. What finds no room comes back in the optimizer's step.
    """
    token = graph.token()
    if not graph.is_backward:
        graph.insert(token.next, offload, (token, graph.graph_id, sorted(sent)))
    else:
        for ids, place in _places(graph, sent):
            graph.insert(place, reload, (token, graph.graph_id, ids))
    wait_where_needed(graph, token, sent)


def wait_where_needed(graph: ZeroGraph, token: Node, sent: Mapping[int, int]) -> None:
    """Inserts a wait for the copies to the host where the graph first needs the memory that they give up."""
    allowed = graph.memory.allowed_bytes(sent)
    full = next((node for node in graph.nodes if allocated_bytes(graph, node) > allowed), None)
    if full is not None:
        graph.insert(full, torch.ops.dc.wait_offloads.default, (token, graph.graph_id))


def allocated_bytes(graph: ZeroGraph, node: Node) -> int:
    """Returns the most bytes that the device had allocated at this node of the measured step, as if nothing were on the
    host."""
    return 0 if graph.profile is None else graph.profile.allocated_bytes.get(key(node), 0)


def _places(graph: ZeroGraph, sent: Mapping[int, int]) -> list[tuple[list[int], Node]]:
    """Returns the parameters, each with the node before which what is kept of it comes back. The largest ones come
    first."""
    most, from_here = graph.later_bytes, []
    for node in reversed([node for node in graph.nodes if node.op != "placeholder"]):
        most = max(most, allocated_bytes(graph, node))
        from_here.append((most, node))
    from_here = [place for place in reversed(from_here) if place[1].target != torch.ops.aten.empty.memory_format]
    room = graph.memory.allowed_bytes(sent) + sum(sent.values())
    back, places = 0, []
    for id, size in sorted(sent.items(), key=lambda item: -item[1]):
        place = next((node for most, node in from_here if most + back + size <= room), None)
        if place is not None:
            back += size
            places.append(([id], place))
    return places
