# SPDX-License-Identifier: Apache-2.0
"""The optimizer of a run, built from the options."""

from __future__ import annotations

import pkgutil
from typing import Any

import torch
from transformers import PreTrainedModel

from octavo.train.config import TrainConfig
from octavo.train.muon import MuonWithAdamW
from octavo.train.parameter_groups import parameter_groups


def build_optimizer(config: TrainConfig, model: PreTrainedModel) -> torch.optim.Optimizer:
    """Returns the optimizer that the options ask for. Norms and biases have no weight decay in any of them.

    ``--beta1`` is the momentum of Adam and AdamW, of 1-bit AdamW and LAMB before and after their freeze, of 0/1 Adam,
    of Muon (whose AdamW part keeps AdamW's default), of Signum, and of the update of Lion. ``--beta2`` is the decay of
    the variance, and in Lion that of the momentum that it keeps.
    """
    if config.kind.has_adamw_beside:
        return MuonWithAdamW(model, config)
    optimizer = pkgutil.resolve_name(config.kind.class_path)
    groups = parameter_groups(model.parameters(), config.weight_decay)
    return optimizer(groups, lr=config.resolved_lr, **_arguments(config))


def _arguments(config: TrainConfig) -> dict[str, Any]:
    """Returns what the constructor of the optimizer's class takes besides the parameters and the learning rate."""
    kind, beta1 = config.kind, config.resolved_beta1
    if kind.beta2 is None:
        return dict(momentum=beta1)
    plan_has_momentum = config.parsed_plan.momentum is not None
    arguments: dict[str, Any] = dict(betas=(0.0 if plan_has_momentum else beta1, config.resolved_beta2))
    if kind.eps is not None:
        arguments["eps"] = kind.eps
    if kind.freezes_variance:
        arguments |= dict(warmup_steps=config.onebit_warmup_steps, frozen_beta=beta1)
    if kind.sends_updates:
        arguments |= config.zero_one_schedule
    return arguments


def optimizer_options(config: TrainConfig) -> dict[str, Any]:
    """Returns what metrics.jsonl and summary.json say about the optimizer, with its defaults resolved."""
    own_rate = {} if config.adamw_lr is None else {"adamw_lr": config.adamw_lr}
    return dict(
        beta1=config.resolved_beta1,
        beta2=config.resolved_beta2,
        weight_decay=config.weight_decay,
        clip_norm=config.clip_norm,
        **own_rate,
    )
