# SPDX-License-Identifier: Apache-2.0
"""Hands gradients over soon after they are computed."""

from __future__ import annotations

import torch

from octavo.zero.compiled.graph import ZeroGraph


def reduce(graph: ZeroGraph) -> None:
    """Gives each gradient a call of its own. It is then sent while the backward pass goes on, and its memory is free.

    The calls are in the reverse order of the parameters, in which most models compute gradients, and each is right
    behind its gradient or the call before. The order in which a graph computes them may depend on shapes, in which
    ranks may differ."""
    for at_end in graph.calls(torch.ops.dc.reduce_grads.default):
        gradients, token, graph_id, ids = at_end.args
        next(node for node in graph.nodes if node.op != "placeholder").prepend(token)
        place = {node: number for number, node in enumerate(graph.nodes)}
        behind = token
        for gradient, id in sorted(zip(gradients, ids, strict=True), key=lambda pair: pair[1], reverse=True):
            behind = max(behind, gradient, key=place.__getitem__)
            call = graph.insert(behind.next, torch.ops.dc.reduce_grads.default, ([gradient], token, graph_id, [id]))
            place[call], behind = place[behind], call
        graph.module.graph.erase_node(at_end)
