# SPDX-License-Identifier: Apache-2.0
"""Optimizers whose steps have one size for all elements, and the direction of a momentum's sign: Lion, and two whose
signs the ranks vote on, Distributed Lion and Signum."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from octavo._C import Plan
from octavo.optim.base import of_itself, outside_of_inference
from octavo.optim.checks import require_steppable, without_inert
from octavo.optim.fused import FusedOptimizer, Moved, StepCall
from octavo.optim.joined import JoinedOptimizer


class Lion(FusedOptimizer):
    """Lion (Chen et al. 2023): a step of ``lr`` in the direction of the sign of ``beta1 * m + (1 - beta1) * gradient``,
    after which ``m`` becomes ``beta2 * m + (1 - beta2) * gradient``. The sign of 0 is 0. Weight decay is decoupled, as
    in AdamW.

    The paper advises a third to a tenth of AdamW's learning rate and three to ten times its weight decay. State of a
    parameter: ``exp_avg``, in float32 whatever the parameter's dtype is, unless ``optim_bits`` says otherwise. The
    other options are those of ``octavo.optim.fused.FusedOptimizer``, whose docstring explains them. With a compressed
    model it takes the averaged gradients; ``DistributedLion`` sends less.
    """

    _moments = ("exp_avg",)
    _own_options = frozenset({"betas", "weight_decay"})

    def __init__(
        self,
        params: Any,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        **options: Any,
    ):
        defaults = dict(lr=lr, betas=betas, weight_decay=weight_decay)
        super().__init__(params, defaults, **without_inert(self, options))

    def _call(self, group: dict[str, Any], moved: Moved, tensors: dict[str, Any]) -> None:
        beta1, beta2 = self._betas(group)  # for the update whose sign is the step, and for the momentum that is kept
        torch.ops.octavo.lion_(
            momenta=moved.values("exp_avg"),
            scales=moved.scales("exp_avg"),
            lr=float(group["lr"]),
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            **tensors,
        )


class Lion8bit(Lion):
    """``Lion`` with its momentum in 8 bits: 1.02 bytes of state per parameter instead of 4."""

    _bits = 8


class PagedLion(Lion):
    """``Lion`` with its state in managed memory."""

    _pages = True


class PagedLion8bit(Lion8bit):
    """``Lion8bit`` with its state in managed memory."""

    _pages = True


# Further names that bitsandbytes has for these classes.
Lion32bit, PagedLion32bit = Lion, PagedLion


class DistributedLion(JoinedOptimizer, Lion):
    """Lion whose signs the ranks vote on (Liu et al. 2024): each element takes two bits in each direction instead of
    32.

    >>> optimizer = octavo.optim.DistributedLion(model.parameters(), lr=1e-4)
    >>> handle = octavo.compress(ddp, "sign-vote", optimizer=optimizer)

    Each rank keeps the momentum of its own gradients and sends the sign of its own update. The majority's sign comes
    back, 0 for a tie, and all ranks make a step by it. This happens in the communication hook, while backward goes on:
    ``parameter.grad`` then holds the result of the vote, not a gradient. Exempt parameters (norms, biases) are sent in
    float32, and their step is the sign of the averaged update. Any other plan than ``sign-vote`` does the same for all
    parameters with what it sends; ``dense`` is Lion on averaged gradients.

    The momenta are state of each rank: ``handle.state_dict()`` of each rank has them, and the optimizer's own state
    does not. They are float32, and paged where ``octavo.compress`` is told to page; parameters are rounded to nearest.
    An ``optim_bits``, ``is_paged`` or ``bf16_rounding`` that says otherwise is refused with ValueError. The betas of a
    step are those in force when its forward pass began.

    A step with a NaN on any rank leaves momenta and parameters as they were. When it is joined to a handle,
    ``nonfinite="skip_element"`` therefore means ``"skip_step"``, and ``saw_nonfinite()`` tells. Clipping has no effect
    on the size of a step: gradients that were clipped, or scaled by a GradScaler that ``octavo.compress`` does not
    know, are refused with RuntimeError. In a single process, where nothing is sent, no handle is needed and this is
    ``Lion``.
    """

    _alike = ("betas",)
    _betas_of_handle: tuple[float, float] | None = None

    @property
    def phase(self) -> object:
        return super().phase, self._betas(self.param_groups[0])

    @of_itself
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        if self._handle is not None:
            self._enter_phase()

    @property
    def keeps_own_momenta(self) -> bool:
        return True

    @of_itself
    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Raises ValueError where the optimizer is joined to a handle, since no gradient is left to clip."""
        if self._handle is None:
            return super().clip_grad_norm_(max_norm)
        raise ValueError(
            f"[optim.{type(self).__name__}] a step has the size of the learning rate, whatever the gradient is: leave "
            f"the clip out"
        )

    def require_plan(self, plan: Plan) -> None:
        self._require(plan.momentum is None, "a plan that keeps no momentum, such as sign-vote", plan)
        self._require(not plan.is_auto, "a plan that stays the same, such as sign-vote", plan)

    def require_joinable(self, plan: Plan, parameters: Iterable[Tensor]) -> None:
        super().require_joinable(plan, parameters)
        for group in self.param_groups:
            self._require_joined_options(group)

    def _require_valid(self, group: dict[str, Any]) -> None:
        super()._require_valid(group)
        if self._handle is not None:
            self._require_joined_options(group)

    def _require_joined_options(self, group: dict[str, Any]) -> None:
        """Raises ValueError for options of the state, which the handle keeps, and of a rounding that a joined step does
        not have."""
        for name, value, what_works in (
            ("optim_bits", 32, " of 32 in a joined optimizer: octavo.compress keeps the momenta, in float32"),
            ("is_paged", False, "=False in a joined optimizer: octavo.compress(..., is_paged=True) pages the momenta"),
            ("bf16_rounding", "nearest", "='nearest' in a joined optimizer: keep parameters in float32"),
        ):
            self._require(group[name] == value, f"{name}{what_works}", repr(group[name]))

    def _enter_phase(self) -> None:
        if self._handle is None:
            return
        ours = [parameter for parameter in self._parameters() if parameter in self._sent]  # also those frozen meanwhile
        self._betas_of_handle = self._betas(self.param_groups[0])
        self._handle.keep_own_momenta(ours, *self._betas_of_handle)
        if any([self.state.pop(parameter, None) for parameter in ours]):
            warnings.warn(
                f"[optim.{type(self).__name__}] the momenta of a single process are left out: ranks keep momenta of "
                f"their own gradients, in the handle, which begin at zero unless its state is loaded",
                stacklevel=4,
            )

    def _before_forward(self, *_: object) -> None:
        if self._betas_of_handle != self._betas(self.param_groups[0]):
            self._enter_phase()

    def _require_ready(self) -> None:
        self._require_joined()
        if self._only_makes_states():
            return
        self._require_delivered(
            "step",
            ".grad holds what the ranks voted on, and it was changed after the ranks delivered it. Leave out "
            "torch.nn.utils.clip_grad_norm_: every step has the size of the learning rate; a GradScaler must be given "
            "to octavo.compress(..., scaler=scaler) and must unscale before",
        )

    def _may_step(self, moved: list[list[Tensor]]) -> bool:
        """Whether the step may be made. With a handle all ranks have the same NaNs in ``grad``, and after such a step
        their momenta are as they were before it."""
        may = super()._may_step(moved)
        if may and self._handle is not None and self._only_makes_states():
            return False  # there are none: the handle keeps the momenta
        if not may or self._handle is None or self._handle.end_step():
            return may
        self._tell_nonfinite(moved)
        return False

    def _step_calls(self, group: dict[str, Any], parameters: list[Tensor], factor: Tensor | None) -> list[StepCall]:
        if self._handle is None:
            return super()._step_calls(group, parameters, factor)
        updates = [parameter.grad for parameter in parameters]
        make = partial(torch.ops.octavo.sign_step_, parameters, updates, group["lr"], group["weight_decay"])

        def check() -> None:
            for parameter in parameters:
                require_steppable(self, parameter, {})

        return [StepCall(make, check)]

    @of_itself
    @outside_of_inference
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._enter_phase()


class Signum(DistributedLion):
    """SGD with momentum by signs (Bernstein et al. 2018, 2019): the ranks vote on the sign of
    ``m = momentum * m + (1 - momentum) * gradient``. It is ``DistributedLion`` with both betas equal and with no
    options but those below; what else is said there is true here.

    >>> optimizer = octavo.optim.Signum(model.parameters(), lr=1e-4)
    >>> handle = octavo.compress(ddp, "sign-vote", optimizer=optimizer)

    The learning rate is the paper's for ImageNet; weight decay is decoupled.
    """

    _own_options = frozenset({"momentum", "weight_decay"})
    _alike = ("momentum",)

    def __init__(self, params: Any, lr: float = 1e-4, momentum: float = 0.9, weight_decay: float = 0.0):
        FusedOptimizer.__init__(self, params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    def _betas(self, group: dict[str, Any]) -> tuple[float, float]:
        return group["momentum"], group["momentum"]
