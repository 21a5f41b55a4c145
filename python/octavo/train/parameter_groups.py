# SPDX-License-Identifier: Apache-2.0
"""The parameter groups of an optimizer: norms and biases have no weight decay."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def parameter_groups(parameters: Iterable[torch.nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    """Returns two parameter groups: one with weight decay, and one without it for parameters of fewer than two
    dimensions. A group without parameters is left out."""
    decayed: dict[bool, list[torch.nn.Parameter]] = {True: [], False: []}
    for parameter in parameters:
        decayed[parameter.ndim >= 2].append(parameter)
    decays = {True: weight_decay, False: 0.0}
    return [dict(params=group, weight_decay=decays[kind]) for kind, group in decayed.items() if group]
