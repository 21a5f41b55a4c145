# SPDX-License-Identifier: Apache-2.0
"""Keeps those parameters whole whose gathers take longest for their bytes, as far as there is memory to spare."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.fx import Node

from octavo.zero.compiled.graph import Profile, ZeroGraph, key, size_bytes
from octavo.zero.compiled.passes.gather import launch_of, parts_of


def selective_gather(graph: ZeroGraph) -> None:
    """Makes parameters persistent, all of a transfer or none: if one of them still had to be gathered, the transfer
    would take as long."""
    if graph.profile is None:
        return
    memory = graph.memory
    for _, part_bytes, ids in sorted(_transfers(graph, graph.profile), key=lambda transfer: transfer[0], reverse=True):
        if part_bytes <= memory.spare_bytes and not memory.persistent.issuperset(ids):
            memory.keep(ids, part_bytes)


def _transfers(graph: ZeroGraph, profile: Profile) -> Iterator[tuple[float, int, list[int]]]:
    """Yields for each transfer its seconds per byte (the time from its start to its end in which the graph did nothing
    else), its bytes and the ids of its parameters."""
    for wait in graph.calls(torch.ops.dc.wait_params.default):
        launch: Node = launch_of(wait)
        part_bytes = sum(size_bytes(part) for part in parts_of(launch))
        seconds = profile.seconds.get(key(wait), 0.0) + profile.seconds.get(key(launch), 0.0)
        if part_bytes > 0:
            yield seconds / part_bytes, part_bytes, wait.args[2]
