# SPDX-License-Identifier: Apache-2.0
"""Keeps on the host, between the optimizer's steps, what the optimizer keeps."""

from __future__ import annotations

import torch

from octavo.zero.compiled.graph import ZeroGraph
from octavo.zero.compiled.passes.between_steps import wait_between_steps


def offload_optimizer(graph: ZeroGraph) -> None:
    """Sends so many parameters' states to the host that the measured step fits into ``memory_mib``, and all of them if
    ``memory_mib`` is not set."""
    sent = {} if graph.profile is None else graph.memory.send("states", graph.memory.states)
    if sent:
        wait_between_steps(graph, sent, torch.ops.dc.offload_states.default, torch.ops.dc.reload_states.default)
