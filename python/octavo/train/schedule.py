# SPDX-License-Identifier: Apache-2.0
"""The learning rate of a step: a linear rise, then half a cosine down towards zero."""

from __future__ import annotations

import math

import torch


def learning_rate(step: int, steps: int, warmup_steps: int, peak: float) -> float:
    """Returns the rate of `step`, from 1 to `steps`. It depends on nothing else, so a resumed run needs no scheduler
    state."""
    if step <= warmup_steps:
        return peak * step / warmup_steps
    # The divisor has one more, so that the last step still learns.
    progress = (step - warmup_steps) / (steps - warmup_steps + 1)
    return peak * 0.5 * (1.0 + math.cos(math.pi * progress))


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Gives every parameter group of `optimizer` the rate, times the group's `lr_share` where it has one."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("lr_share", 1.0)
