# SPDX-License-Identifier: Apache-2.0
"""Stage 3: gathers parameters for their uses in a graph, several in one transfer."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator

import torch
from torch.fx import Node

from octavo.zero.compiled.graph import ZeroGraph, size_bytes, users
from octavo.zero.compiled.partition import PARAMETER, is_cast


def gather(graph: ZeroGraph) -> None:
    """Gathers parameters that are used next to each other in one transfer, before the first use of any of them. A
    transfer starts when the one before is complete. The memory is the graph's, and is free after the last use."""
    waits = [_gather_together(graph, parameters) for parameters in _transfers(graph)]
    for before, wait in itertools.pairwise(waits):
        move_launch(launch_of(wait), before)


def launch_of(wait: Node) -> Node:
    """Returns the call that starts the transfer for which ``wait``, a call of wait_params, waits."""
    return wait.args[0][0].args[0]


def parts_of(launch: Node) -> list[Node]:
    """Returns the nodes of the parameters that a transfer gives. They are there after the wait."""
    return [node for node in launch.users if node.target is operator.getitem]


def move_launch(launch: Node, behind: Node) -> None:
    for part in parts_of(launch):
        behind.append(part)
    behind.append(launch)


def _transfers(graph: ZeroGraph) -> Iterator[list[Node]]:
    together: list[Node] = []
    for node in graph.parameters:
        together.append(node)
        if sum(size_bytes(n) for n in together) >= graph.transfer_bytes:
            yield together
            together = []
    if together:
        yield together


def _gather_together(graph: ZeroGraph, parameters: list[Node]) -> Node:
    """Inserts one transfer of these parameters, and returns the call that waits for it."""
    ids = [node.meta[PARAMETER] for node in parameters]
    casts = [_cast_of(node) for node in parameters]
    values = [_whole(node, cast) for node, cast in zip(parameters, casts, strict=True)]
    using = [users(node) for node in parameters]
    everyone = {user for of_one in using for user in of_one}
    first = next(node for node in graph.nodes if node in everyone)
    dtypes = [value.dtype for value in values]
    arguments = (parameters, graph.graph_id, ids, dtypes)
    launch = graph.insert(first, torch.ops.dc.allgather_params_fused.default, arguments, values)
    wholes = [graph.insert(first, operator.getitem, (launch, i), value) for i, value in enumerate(values)]
    wait = graph.insert(first, torch.ops.dc.wait_params.default, (wholes, graph.graph_id, ids))
    for node, of_one, cast, whole in zip(parameters, using, casts, wholes, strict=True):
        for user in of_one:
            if cast is None:
                user.replace_input_with(node, whole)
            else:
                user.replace_all_uses_with(whole)
                graph.module.graph.erase_node(user)
    return wait


def _cast_of(parameter: Node) -> torch.dtype | None:
    """Returns the dtype to which all users of a parameter cast it first, if it has fewer bytes and a fraction; fewer
    bytes are then sent."""
    value = parameter.meta["val"]
    casts = [user.meta["val"] for user in users(parameter) if is_cast(user)]
    dtypes = {cast.dtype for cast in casts}
    is_only_cast = len(dtypes) == 1 and len(casts) == len(users(parameter))
    if not is_only_cast or any(cast.stride() != value.stride() for cast in casts):  # also to another memory format
        return None
    dtype = dtypes.pop()
    return dtype if dtype.itemsize < value.dtype.itemsize and dtype.is_floating_point else None


def _whole(parameter: Node, cast: torch.dtype | None) -> torch.Tensor:
    value = parameter.meta["val"]
    with value.fake_mode:
        return torch.empty(value.shape, dtype=cast or value.dtype, device=value.device)
