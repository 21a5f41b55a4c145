# SPDX-License-Identifier: Apache-2.0
"""What must be true of a graph after a pass has edited it, whoever wrote the pass: each gather has its wait before the
first use, and the gradients that are reduced are those of before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import torch
from torch.fx import Node

from octavo.zero.compiled.graph import ZeroGraph
from octavo.zero.compiled.passes import Pass
from octavo.zero.compiled.passes.gather import parts_of

_WAIT = torch.ops.dc.wait_params.default


def edit_checked(name: str, of_name: Pass, graph: ZeroGraph, reductions: Counter[str]) -> None:
    """Edits a graph, and checks what the pass has made of it. Raises RuntimeError, which names the pass, where that
    raises something else than one of Octavo's own errors."""
    try:
        of_name.edit(graph)
        _require_reductions(name, reductions, graph)
        _require_waits(name, graph)
    except Exception as error:
        if str(error).startswith("["):
            raise
        raise RuntimeError(
            f"[zero.passes] the pass {name} has failed on graph {graph.graph_id}: {type(error).__name__}: {error}"
        ) from error


def _require_waits(name: str, graph: ZeroGraph) -> None:
    """Raises ValueError where a pass has left a gather without its wait, or has put a use of what is gathered before
    the wait: the graph would compute with memory that is still being written."""
    launches = graph.calls(torch.ops.dc.allgather_params_fused.default)
    waits = graph.calls(_WAIT)
    launched, awaited = (Counter(id for call in calls for id in call.args[2]) for calls in (launches, waits))
    if launched != awaited:
        others = sorted(set((launched - awaited) + (awaited - launched)))
        raise ValueError(
            f"[zero.passes] after the pass {name}, the waits for parameters {others} of graph {graph.graph_id} do not "
            f"match their gathers: keep one call of dc.wait_params for each of dc.allgather_params_fused, with its ids"
        )
    place = {node: number for number, node in enumerate(graph.nodes)}
    early = sorted({id for launch in launches for id in _used_early(launch, place)})
    if early:
        raise ValueError(
            f"[zero.passes] after the pass {name}, {graph.name} does not wait for parameters {early} before it uses "
            f"them: give each call of dc.wait_params the results of a dc.allgather_params_fused with their ids, and "
            f"keep it before all else that uses them"
        )


def _used_early(launch: Node, place: Mapping[Node, int]) -> Iterator[int]:
    """Yields the ids of those parameters of a transfer that have no wait, or that something uses before their wait.
    ``place``: the number of each node in the order of the graph."""
    parts = [part for part in parts_of(launch) if isinstance(part.args[1], int)]
    of_all = set(launch.users) - set(parts)  # what uses several of them at once
    ids = launch.args[2]
    for number, id in enumerate(ids):
        own = [part for part in parts if part.args[1] % len(ids) == number]
        using = of_all.union(*(part.users for part in own))
        waits = {user for user in using if user.target is _WAIT and any(_waits_for(user, part, id) for part in own)}
        if not waits or any(place[user] < min(place[wait] for wait in waits) for user in using - waits):
            yield id


def _waits_for(wait: Node, part: Node, id: int) -> bool:
    gathered, _, ids = wait.args
    return any(one is part and of_one == id for one, of_one in zip(gathered, ids, strict=True))


def _require_reductions(name: str, before: Counter[str], graph: ZeroGraph) -> None:
    """Raises ValueError where a pass has taken from a graph what hands over gradients, or has put more of it there:
    training would go on with wrong gradients."""
    now = graph.reductions()
    if now != before:
        what = next(iter((before - now) or (now - before)))
        raise ValueError(
            f"[zero.passes] the pass {name} has changed which gradients a graph reduces: the graph "
            f"had {before[what]} calls for {what} before the pass, and has {now[what]} after it; a pass may move calls "
            f"of dc.reduce_grads and dc.finish_backward, and replace one call by several of the same parameters"
        )
