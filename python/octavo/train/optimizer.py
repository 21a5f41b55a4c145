# SPDX-License-Identifier: Apache-2.0
"""The optimizer of a run, and the learning rate of a step: a linear rise, then half a cosine down towards zero."""

from __future__ import annotations

import math
from typing import Any

import torch
from transformers import LlamaForCausalLM

import octavo
from octavo.train.config import TrainConfig

ADAM_BETAS = (0.9, 0.999)
ADAM_EPS = 1e-8


def learning_rate(step: int, steps: int, warmup_steps: int, peak: float) -> float:
    """The rate of `step`, from 1 to `steps`. A pure function: a resumed run needs no scheduler state."""
    if step <= warmup_steps:
        return peak * step / warmup_steps
    # One more in the divisor, so that the last step still learns.
    progress = (step - warmup_steps) / (steps - warmup_steps + 1)
    return peak * 0.5 * (1.0 + math.cos(math.pi * progress))


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Gives every parameter group of `optimizer` the same rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def build_optimizer(config: TrainConfig, model: LlamaForCausalLM, handle: Any) -> torch.optim.Optimizer:
    """The optimizer that the options ask for. Raises ValueError for options that it cannot use."""
    options = dict(lr=config.lr, betas=ADAM_BETAS, eps=ADAM_EPS, weight_decay=config.weight_decay)
    if config.optimizer_name == "adamw":
        return torch.optim.AdamW(model.parameters(), **options)
    return octavo.optim.OneBitAdamW(
        model.parameters(), warmup_steps=config.onebit_warmup_steps, handle=handle, **options
    )
