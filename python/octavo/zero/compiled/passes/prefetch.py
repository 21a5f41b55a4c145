# SPDX-License-Identifier: Apache-2.0
"""Starts transfers of parameters earlier, by the time that a measured step had to wait for them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.fx import Node

from octavo.zero.compiled.graph import Profile, ZeroGraph, key, size_bytes
from octavo.zero.compiled.passes.gather import launch_of, move_launch, parts_of

_ORDERED = (torch.ops.dc.reduce_grads.default, torch.ops.dc.finish_backward.default)


def prefetch(graph: ZeroGraph) -> None:
    """Moves the starts of transfers forward, in their order and where memory allows.

    A transfer's parameters take memory from its start on, and the peak of the measured step may grow by
    ``graph.memory.spare_bytes``. No transfer is moved before one of gradients: all ranks must have the same order of
    transfers, and gradients come when a rank's own device has computed them.
    """
    if graph.profile is None:
        return
    live_bytes = dict(graph.profile.live_bytes)
    allowed_bytes = graph.profile.peak_bytes + graph.memory.spare_bytes
    for wait in graph.calls(torch.ops.dc.wait_params.default):
        launch = launch_of(wait)
        early_bytes = sum(size_bytes(part) for part in parts_of(launch))
        start = launch
        for before in _hiding(graph.profile, launch, graph.profile.seconds.get(key(wait), 0.0)):
            if live_bytes.get(key(before), 0) + early_bytes > allowed_bytes:
                break
            live_bytes[key(before)] = live_bytes.get(key(before), 0) + early_bytes
            start = before
        if start is not launch:
            move_launch(launch, start.prev)


def _hiding(profile: Profile, launch: Node, hidden_s: float) -> Iterator[Node]:
    """Yields, backwards, the nodes during which a transfer may be under way, until they take ``hidden_s`` seconds."""
    node = launch.prev
    while hidden_s > 0 and node.op == "call_function" and node.target not in _ORDERED:
        if node.target == torch.ops.dc.allgather_params_fused.default:
            return
        yield node
        hidden_s -= profile.seconds.get(key(node), 0.0)
        node = node.prev
