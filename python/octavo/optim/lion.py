# SPDX-License-Identifier: Apache-2.0
"""Optimizers whose step has one size for every element and goes by the sign of a momentum: Lion, and the two whose
signs the ranks vote on, Distributed Lion and Signum."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from octavo._C import Plan
from octavo.optim.checks import require_dense, require_own_state, require_real
from octavo.optim.joined import JoinedOptimizer


class Lion(Optimizer):
    """Lion (Chen et al. 2023): a step of ``lr`` by the sign of ``beta1 * m + (1 - beta1) * gradient``, after which
    ``m`` becomes ``beta2 * m + (1 - beta2) * gradient``; the sign of 0 is 0. Weight decay is decoupled, as AdamW's.

    The paper advises a third to a tenth of AdamW's learning rate and three to ten times its weight decay. State per
    parameter: ``exp_avg``, float32 whatever the parameter's dtype. With a compressed model it takes the averaged
    gradients; ``DistributedLion`` sends less.
    """

    _own_options = frozenset({"betas", "weight_decay"})  # of parameter groups, by which a saved state is known

    def __init__(
        self,
        params: Any,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        group, name = self.param_groups[-1], type(self).__name__
        for what, value in (("lr", group["lr"]), ("weight_decay", group["weight_decay"])):
            if not value >= 0:
                raise ValueError(f"[optim.{name}] {what} must be at least 0, got {value}")
        for beta in self._betas(group):
            if not 0 <= beta < 1:
                raise ValueError(f"[optim.{name}] a beta must be at least 0 and below 1, got {beta}")
        require_real(self, group["params"])

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._require_ready()
        moved = [[p for p in group["params"] if p.grad is not None] for group in self.param_groups]
        for parameter in itertools.chain(*moved):
            require_dense(self, parameter.grad)
        for group, parameters in zip(self.param_groups, moved, strict=True):
            self._move(group, parameters)
        return loss

    def _require_ready(self) -> None:
        """Raises RuntimeError where a step would take ``grad`` for what it is not."""

    def _move(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        """The step of parameters that have a ``grad``."""
        for parameter in parameters:
            if not self.state[parameter]:
                zeros = torch.zeros_like(parameter, dtype=torch.float32, memory_format=torch.preserve_format)
                self.state[parameter]["exp_avg"] = zeros
        gradients = [parameter.grad for parameter in parameters]
        momenta = [self.state[parameter]["exp_avg"] for parameter in parameters]
        options = group["lr"], *self._betas(group), group["weight_decay"]
        torch.ops.octavo.lion_(parameters, gradients, momenta, *options)

    def _betas(self, group: dict[str, Any]) -> tuple[float, float]:
        """Of the update whose sign is the step, of the momentum that is kept."""
        return group["betas"]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        require_own_state(self, state_dict, self._own_options)
        super().load_state_dict(state_dict)
        for saved, group in zip(state_dict["param_groups"], self.param_groups, strict=True):
            for key, parameter in zip(saved["params"], group["params"], strict=True):
                momentum = state_dict["state"].get(key, {}).get("exp_avg")
                if momentum is not None:  # torch has cast it to the parameter's dtype
                    copy = torch.empty_like(parameter, dtype=torch.float32).copy_(momentum)
                    self.state[parameter]["exp_avg"] = copy


class DistributedLion(JoinedOptimizer, Lion):
    """Lion whose signs are voted on (Liu et al. 2024): two bits an element and direction instead of 32.

    >>> optimizer = octavo.optim.DistributedLion(model.parameters(), lr=1e-4)
    >>> handle = octavo.compress(ddp, "sign-vote", optimizer=optimizer)

    Each rank keeps the momentum of its own gradients and sends the sign of its own update; the majority's sign comes
    back, 0 for a tie, and all ranks step by it. It happens in the communication hook, overlapped with backward:
    ``parameter.grad`` holds the votes' outcome, not a gradient. Exempt parameters (norms, biases) travel in float32,
    so that theirs is the sign of the averaged update; any other plan than ``sign-vote`` does the same for all
    parameters with what it sends, and ``dense`` is Lion on averaged gradients.

    The momenta are per-rank state: ``handle.state_dict()`` of each rank has them, the optimizer's own state has none.
    A step with a NaN on any rank leaves them as they were. A clip has no effect on the size of a step, so gradients
    that were clipped, or scaled by a GradScaler that ``octavo.compress`` does not know, are refused with RuntimeError.
    In a single process, where nothing crosses a wire, no handle is needed and this is ``Lion``.
    """

    @property
    def phase(self) -> object:
        return super().phase, self._betas(self.param_groups[0])

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        first, here = self._betas(self.param_groups[0]), self._betas(self.param_groups[-1])
        self._require(here == first, "the same betas in all parameter groups", f"{first} and {here}")
        if self._handle is not None:
            self._enter_phase()

    @property
    def keeps_own_momenta(self) -> bool:
        return True

    def require_plan(self, plan: Plan) -> None:
        self._require(plan.momentum is None, "a plan that keeps no momentum, such as sign-vote", plan)
        self._require(not plan.is_auto, "a plan that stays the same, such as sign-vote", plan)

    def _enter_phase(self) -> None:
        if self._handle is None:
            return
        ours = [parameter for parameter in self._parameters() if parameter.requires_grad]
        self._handle.keep_own_momenta(ours, *self._betas(self.param_groups[0]))

    def _require_ready(self) -> None:
        self._require_joined()
        self._require_delivered(
            "step",
            ".grad holds what the ranks voted on, and it is not what came from the wire any more. Leave out "
            "torch.nn.utils.clip_grad_norm_: every step has the size of the learning rate; a GradScaler must be given "
            "to octavo.compress(..., scaler=scaler) and must unscale before",
        )

    def _move(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        if self._handle is None:
            super()._move(group, parameters)
            return
        updates = [parameter.grad for parameter in parameters]
        torch.ops.octavo.sign_step_(parameters, updates, group["lr"], group["weight_decay"])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._enter_phase()


class Signum(DistributedLion):
    """SGD with momentum by the sign of ``m = momentum * m + (1 - momentum) * gradient``, the ranks' signs voted on
    (Bernstein et al. 2018, 2019): Distributed Lion with both betas alike; what is said there holds here.

    >>> optimizer = octavo.optim.Signum(model.parameters(), lr=1e-4)
    >>> handle = octavo.compress(ddp, "sign-vote", optimizer=optimizer)

    The learning rate is the paper's for ImageNet; weight decay is decoupled.
    """

    _own_options = frozenset({"momentum", "weight_decay"})

    def __init__(self, params: Any, lr: float = 1e-4, momentum: float = 0.9, weight_decay: float = 0.0):
        Optimizer.__init__(self, params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    def _betas(self, group: dict[str, Any]) -> tuple[float, float]:
        return group["momentum"], group["momentum"]
