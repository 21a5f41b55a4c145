# SPDX-License-Identifier: Apache-2.0
"""Keeps a rank's parts of parameters on the host between their uses."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.fx import Node

from octavo.zero.compiled.graph import ZeroGraph, key
from octavo.zero.compiled.passes.between_steps import allocated_bytes, wait_between_steps, wait_where_needed
from octavo.zero.compiled.passes.gather import parts_of


def offload_parameters(graph: ZeroGraph) -> None:
    """Sends to the host the parts of all parameters, or of as many as the limit of memory asks for.

    In stage 3 each part is on the device for the transfers that gather it and for the optimizer's step. In stages 1 and
    2 only the optimizer's step needs what a rank has apart.
    """
    sent = {} if graph.profile is None else graph.memory.send("shards", graph.memory.shards)
    if not sent:
        return
    if graph.stage < 3:
        wait_between_steps(graph, sent, torch.ops.dc.offload_params.default, torch.ops.dc.reload_params.default)
        return
    token = graph.token()
    for launch in graph.calls(torch.ops.dc.allgather_params_fused.default):
        _offload_around(graph, token, launch, sent)
    wait_where_needed(graph, token, sent)


def _offload_around(graph: ZeroGraph, token: Node, launch: Node, sent: Mapping[int, int]) -> None:
    """Brings parts back before the transfer that gathers them, as much earlier as the copy takes, and sends them away
    when the transfer has what it sends."""
    ids = [id for id in launch.args[2] if id in sent]
    if not ids:
        return
    after = (parts_of(launch) or [launch])[-1]
    arguments = (token, graph.graph_id, ids)
    graph.insert(after.next, torch.ops.dc.offload_params.default, arguments)
    graph.insert(_start(graph, launch, ids, sent), torch.ops.dc.reload_params.default, arguments)


def _start(graph: ZeroGraph, launch: Node, ids: list[int], sent: Mapping[int, int]) -> Node:
    """Returns the node before which the copy back starts: as far ahead as it needs and memory allows."""
    seconds = {} if graph.profile is None else graph.profile.seconds
    size = sum(sent[id] for id in ids)
    hidden_s = size * graph.memory.copy_s_per_byte
    allowed = graph.memory.allowed_bytes(sent) + sum(sent.values())
    start = launch
    while hidden_s > 0 and start.prev.op == "call_function" and start.prev.target != torch.ops.aten.empty.memory_format:
        if allocated_bytes(graph, start.prev) + size > allowed:
            break
        start = start.prev
        hidden_s -= seconds.get(key(start), 0.0)
    return start
