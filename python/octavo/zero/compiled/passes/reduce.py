# SPDX-License-Identifier: Apache-2.0
"""Hands gradients over as soon as they are computed."""

from __future__ import annotations

import torch

from octavo.zero.compiled.graph import ZeroGraph


def reduce(graph: ZeroGraph) -> None:
    """Gives each gradient a call of its own, right after it was computed. It is then sent while the backward pass goes
    on, and its memory is free."""
    for at_end in graph.calls(torch.ops.dc.reduce_grads.default):
        gradients, token, graph_id, ids = at_end.args
        next(node for node in graph.nodes if node.op != "placeholder").prepend(token)
        for gradient, id in zip(gradients, ids, strict=True):
            before = token.next if gradient.op == "placeholder" else gradient.next
            graph.insert(before, torch.ops.dc.reduce_grads.default, ([gradient], token, graph_id, [id]))
        graph.module.graph.erase_node(at_end)
