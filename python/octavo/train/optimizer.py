# SPDX-License-Identifier: Apache-2.0
"""The optimizer of a run, and the learning rate of a step: a linear rise, then half a cosine down towards zero."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from transformers import PreTrainedModel

import octavo
from octavo.train.config import TrainConfig
from octavo.train.optimizer_names import BETA1, FUSED

ADAM_EPS = 1e-8


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


def build_optimizer(config: TrainConfig, model: PreTrainedModel) -> torch.optim.Optimizer:
    """Returns the optimizer that the options ask for. Norms and biases have no weight decay in any of them.

    ``--beta1`` is the momentum of Adam and AdamW, of 1-bit AdamW and LAMB before and after their freeze, of 0/1 Adam,
    of Muon (whose AdamW part keeps AdamW's default), of Signum, and of the update of Lion. ``--beta2`` is the decay of
    the variance, and in Lion that of the momentum that it keeps.
    """
    name, lr, beta1 = config.optimizer_name, config.resolved_lr, config.resolved_beta1
    if name == "muon":
        return MuonWithAdamW(model, config)
    groups, betas = _groups(model.parameters(), config), (beta1, config.resolved_beta2)
    if config.parsed_plan.momentum is not None:
        betas = (0.0, config.resolved_beta2)
    if name in FUSED:
        return getattr(octavo.optim, FUSED[name])(groups, lr=lr, betas=betas)
    if name == "adamw":
        return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=ADAM_EPS)
    if name == "signum":
        return octavo.optim.Signum(groups, lr=lr, momentum=beta1)
    if name == "lion":
        return octavo.optim.DistributedLion(groups, lr=lr, betas=betas)
    if name == "zero-one-adam":
        return octavo.optim.ZeroOneAdam(groups, lr=lr, betas=betas, eps=ADAM_EPS, **config.zero_one_schedule)
    onebit = octavo.optim.OneBitLamb if name == "onebit-lamb" else octavo.optim.OneBitAdamW
    warmup = config.onebit_warmup_steps
    return onebit(groups, lr=lr, betas=betas, eps=ADAM_EPS, warmup_steps=warmup, frozen_beta=beta1)


def plan_of(config: TrainConfig) -> octavo.Plan:
    """Returns the plan of ``--plan``. Where that plan keeps a momentum and ``--beta1`` is given, ``--beta1`` is its
    momentum."""
    plan = config.parsed_plan
    return plan if plan.momentum is None or config.beta1 is None else plan.with_momentum(config.beta1)


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


class MuonWithAdamW:
    """Muon for the hidden matrices, AdamW for everything else: embeddings, the output layer, norms and biases.

    Muon's update is scaled to the root mean square of AdamW's ("match_rms_adamw", Liu et al. 2025), so that one
    learning rate may be used for both; ``--adamw-lr`` gives AdamW one of its own. The class has what a training loop
    uses of ``torch.optim.Optimizer``; its state is that of both.
    """

    def __init__(self, model: PreTrainedModel, config: TrainConfig) -> None:
        hidden = _hidden_matrices(model)
        known = set(hidden)
        rest = _groups((parameter for parameter in model.parameters() if parameter not in known), config)
        adamw_lr = config.resolved_lr if config.adamw_lr is None else config.adamw_lr
        if config.adamw_lr is not None:
            for group in rest:
                group["lr_share"] = adamw_lr / config.resolved_lr
        self._parts = {
            "muon": torch.optim.Muon(
                hidden,
                lr=config.resolved_lr,
                momentum=config.resolved_beta1,
                weight_decay=config.weight_decay,
                adjust_lr_fn="match_rms_adamw",
            ),
            "adamw": torch.optim.AdamW(
                rest,
                lr=adamw_lr,
                betas=(BETA1["adamw"], config.resolved_beta2),
                eps=ADAM_EPS,
            ),
        }

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of both."""
        return [group for part in self._parts.values() for group in part.param_groups]

    @property
    def state(self) -> dict[torch.nn.Parameter, dict[str, Any]]:
        """The state of each parameter, in a new dict. Its values are the optimizers' own dicts."""
        return {parameter: state for part in self._parts.values() for parameter, state in part.state.items()}

    def step(self) -> None:
        """Makes one step of both."""
        for part in self._parts.values():
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets all gradients."""
        for part in self._parts.values():
            part.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of both, by name."""
        return {name: part.state_dict() for name, part in self._parts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back what `state_dict` returned. Raises ValueError for the state of another optimizer."""
        if state.keys() != self._parts.keys():
            raise ValueError(f"[train.optimizer] the saved state is not that of muon: it has the parts {sorted(state)}")
        for name, part in self._parts.items():
            part.load_state_dict(state[name])


def _hidden_matrices(model: PreTrainedModel) -> list[torch.nn.Parameter]:
    """Returns the matrices between the embeddings and the output layer."""
    outer = {id(model.get_input_embeddings().weight), id(model.get_output_embeddings().weight)}
    return [parameter for parameter in model.parameters() if parameter.ndim == 2 and id(parameter) not in outer]


def _groups(parameters: Iterable[torch.nn.Parameter], config: TrainConfig) -> list[dict[str, Any]]:
    """Returns two parameter groups: one with weight decay, and one without it for parameters of fewer than two
    dimensions."""
    decayed: dict[bool, list[torch.nn.Parameter]] = {True: [], False: []}
    for parameter in parameters:
        decayed[parameter.ndim >= 2].append(parameter)
    decays = {True: config.weight_decay, False: 0.0}
    return [dict(params=group, weight_decay=decays[kind]) for kind, group in decayed.items() if group]
