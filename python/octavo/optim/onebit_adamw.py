# SPDX-License-Identifier: Apache-2.0
"""1-bit AdamW: AdamW that sends its momentum, not its gradient, in one bit per value."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from os import PathLike
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from octavo._C import Plan
from octavo.arguments import is_number
from octavo.optim.base import eager_step, loss_of, of_itself, outside_of_inference
from octavo.optim.checks import require_group_options, require_parameter_states
from octavo.optim.clipping import NormEstimate, clip_factor, require_max_norm, total_norm
from octavo.optim.joined import JoinedOptimizer
from octavo.optim.managed import ManagedStates
from octavo.plan import as_plan


class OneBitAdamW(ManagedStates, JoinedOptimizer):
    """AdamW in two phases, after 1-bit Adam (Tang et al. 2021).

    >>> optimizer = octavo.optim.OneBitAdamW(model.parameters(), lr=1e-3, warmup_steps=round(0.15 * steps))
    >>> handle = octavo.compress(ddp, "sign+ef", optimizer=optimizer)

    Adam divides by a running variance, and the variance of a one-bit gradient says nothing: in plain AdamW signs cost
    some 20 % of the final loss. Therefore this is AdamW for ``warmup_steps`` (about 15 % of a run), on gradients sent
    by ``warmup_plan``. Then the variance is frozen into a preconditioner ``P = 1 / sqrt(v)``, and each rank sends
    ``beta * m + (1 - beta) * P * gradient`` by the plan of ``octavo.compress``. The average comes back as the new
    ``m``, which is the update. This happens in the communication hook, while backward goes on: after the freeze
    ``parameter.grad`` holds ``m``, not a gradient. What would take one for the other is refused with RuntimeError: a
    gradient that is added to it, a clip by its norm (use ``clip_grad_norm_`` of this class), a GradScaler that
    ``octavo.compress`` does not know.

    Three things differ from the paper, each for a measured reason (docs/quality/experiments.md):

    - The momentum is preconditioned before it is sent, so that one scale suits all of a tensor.
    - Its ``beta`` is ``frozen_beta``, 0.5: the feedback of one-bit errors is a delay of its own, and with 0.9 on top
      the update lags behind the loss.
    - The frozen variance keeps its pattern but not its size: it follows the mean square of each tensor's gradients, one
      float that is sent with the bits.

    In a single process, where nothing is sent, no handle is needed. The options beside those of AdamW:

    - ``warmup_steps``: the number of steps of the warm-up. It stays the constructor's after ``load_state_dict``, and
      has no meaning once the variance is frozen.
    - ``warmup_plan``: the plan of gradients in the warm-up.
    - ``variance_floor``: the frozen root of the variance is at least this share of its mean over 256 elements.
    - ``frozen_beta``: the ``beta`` after the freeze.
    - ``is_paged``: whether the state's tensors are kept in managed memory; on the CPU with ``page_dir`` in files in
      that directory. ``octavo.compress`` has the same options for what the handle keeps.

    A parameter that had no gradient in the warm-up, or only zeros, has no variance to freeze: it stays on plain AdamW,
    with gradients that are then sent by the plan of ``octavo.compress``. A step with a NaN or an infinity in any
    gradient of any rank is not made. State of a parameter: ``exp_avg`` and ``exp_avg_sq`` (after the freeze ``m`` and
    ``P``), float32 whatever the parameter's dtype is, and scalars. All of it is in ``state`` and ``param_groups``, and
    equal on all ranks. Save ``handle.state_dict()`` with it. A step is in float32: parameters in float64 are rounded to
    it.
    """

    _own_options = frozenset({"frozen"})  # options of parameter groups by which a saved state is recognized
    _names = frozenset({"step", "frozen", "power", "frozen_power", "exp_avg", "exp_avg_sq"})  # in a parameter's state
    _alike = ("warmup_steps", "warmup_plan", "frozen_beta")
    _more_defaults: Mapping[str, Any] = MappingProxyType({})  # the options that a subclass adds
    _must_freeze = False  # whether a freeze has failed midway
    _clipped_step: int | None = None  # the last one with a call of clip_grad_norm_, as the handle counts
    _clipped_by = 1.0  # what the calls of that step have multiplied its gradients by

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        warmup_steps: int,
        warmup_plan: str | Plan = "int4+ef",
        variance_floor: float = 0.3,
        frozen_beta: float = 0.5,
        is_paged: bool = False,
        page_dir: str | PathLike | None = None,
    ):
        self._set_paging(is_paged, page_dir)
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "warmup_steps": warmup_steps,
                "warmup_plan": str(warmup_plan),
                "variance_floor": variance_floor,
                "frozen_beta": frozen_beta,
                # the phase, the same in all groups
                "steps": 0,
                "frozen": False,
                **NormEstimate.START,  # over the clipped steps of the warm-up
                **self._more_defaults,
            },
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        for key in ("steps", "frozen", *NormEstimate.START):
            self.param_groups[-1][key] = self.param_groups[0][key]

    def _require_valid(self, group: dict[str, Any]) -> None:
        super()._require_valid(group)
        beta, steps, plan = group["frozen_beta"], group["warmup_steps"], as_plan(group["warmup_plan"])
        self._require(is_number(beta) and 0 <= beta < 1, "frozen_beta in [0, 1)", repr(beta))
        is_count = is_number(steps) and steps >= 1
        self._require(is_count, "warmup_steps of at least 1, since the variance is learnt in them", repr(steps))
        self._require(not plan.votes, "a warmup_plan that keeps magnitudes, such as int4+ef", plan)
        self._require(plan.momentum is None, "a warmup_plan that keeps no momentum, such as int4+ef", plan)

    @property
    def frozen(self) -> bool:
        """Whether the warm-up is over. With a handle ``grad`` then holds momenta."""
        return self.param_groups[0]["frozen"]

    @property
    def warmup_steps(self) -> int:
        return self.param_groups[0]["warmup_steps"]

    @property
    def warmup_plan(self) -> str:
        return self.param_groups[0]["warmup_plan"]

    @eager_step
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        loss = loss_of(closure)
        self._require_all_valid()
        self._memory.require_own_process()
        self._require_joined()
        if self._finish_freeze() and self._handle is not None:
            return loss  # no forward pass has followed the step that failed: that step has already used these gradients
        self._require_momenta("step")
        self._require_steppable()
        powers = self._powers()
        # Squares of finite gradients may leave float32, and would stay in the sums of squares for good.
        is_finite = all(map(math.isfinite, powers.values()))
        if self._handle is not None:
            is_finite = self._end_step(is_finite)
        if is_finite:
            self._make_step(powers)
        return loss

    def _end_step(self, has_finite_powers: bool) -> bool:
        """Ends the handle's step, which is dropped where powers are not finite, on all ranks, since all have the same.
        Returns whether it is to be made."""
        if not has_finite_powers:
            self._handle.drop_step_or_residuals()
        is_finite = self._handle.end_step()
        if is_finite and not has_finite_powers:
            warnings.warn(
                f"[optim.{type(self).__name__}] a step was left out: its gradients are finite and their squares are "
                f"not, in float32. Where a GradScaler scales them, its scale has grown too large",
                stacklevel=4,
            )
        return is_finite and has_finite_powers

    def _powers(self) -> dict[Tensor, float]:
        """Returns the mean squares of the gradients that there are, after a clip; with a handle, those that are the
        same on all ranks."""
        known = {}
        if self._handle is not None:
            factor = self._factor_of_clips
            known = {parameter: factor**2 * power for parameter, power in self._handle.gradient_powers().items()}
        powers = {}
        for parameter in self._parameters():
            if parameter.grad is not None:
                powers[parameter] = known[parameter] if parameter in known else _mean_square(parameter.grad)
        return powers

    def _make_step(self, powers: dict[Tensor, float]) -> None:
        for group in self.param_groups:
            self._step_group(group, powers)
            group["steps"] += 1
        if not self.frozen and self.param_groups[0]["steps"] >= self.warmup_steps:
            self._freeze()

    @of_itself
    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Clips the global norm of the gradient, in both phases. Returns the norm, a tensor without dimensions. Call it
        before ``step``, and after ``scaler.unscale_`` where there is a scaler.

        After the freeze there is no gradient any more. Its norm is then estimated from the powers that are sent with
        the bits, calibrated by the steps of the warm-up that were clipped. The clip reduces that part of the new
        momentum which this step's gradient has brought.

        A second call in a step measures, and clips, what the first has left of the gradient.
        """
        require_max_norm(max_norm, f"optim.{type(self).__name__}")
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        if self._handle is None:
            return self._clip(total_norm(gradients), max_norm)
        self._require_momenta("clip_grad_norm_")
        powers = self._handle.gradient_powers()
        own = set(self._parameters())
        squares = sum(power * parameter.numel() for parameter, power in powers.items() if parameter in own)
        estimate = NormEstimate(self.param_groups)
        if self.frozen:
            left = self._factor_of_clips * estimate.of(squares)
            return self._clip(torch.tensor(left, dtype=torch.float32, device="cpu"), max_norm)
        norm = total_norm(gradients)
        if not self._had_clips and torch.isfinite(norm) and math.isfinite(squares):
            estimate.learn(norm.item(), squares, decay=self.param_groups[0]["betas"][1])
        return self._clip(norm, max_norm)

    def _clip(self, norm: Tensor, max_norm: float) -> Tensor:
        if not torch.isfinite(norm):
            return norm  # the step will be skipped
        factor = float(clip_factor(norm.cpu().double(), max_norm))
        if factor < 1.0:
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is None:
                        continue
                    parameter.grad.mul_(factor)
                    if self._handle is not None and self.state[parameter].get("frozen"):
                        momentum = self.state[parameter]["exp_avg"].to(parameter.grad.dtype)
                        parameter.grad.add_(momentum, alpha=group["frozen_beta"] * (1 - factor))
        if self._handle is not None:
            self._handle.scaled_by(factor)
            self._clipped_by = factor * self._factor_of_clips
            self._clipped_step = self._handle.stats()["steps"]
        return norm

    def _step_group(self, group: dict[str, Any], powers: dict[Tensor, float]) -> None:
        warm = {}
        for parameter in group["params"]:
            if parameter not in powers:
                continue
            state, power = self.state[parameter] or self._first_state(parameter), powers[parameter]
            if state["frozen"]:
                before = dict(state)
                self._count(state, power, group)
                try:
                    self._step_frozen(parameter, group, power)
                except BaseException:  # it found no memory: what is not made is not counted
                    state.update(before)
                    raise
            else:
                warm[parameter] = power
        self._step_warm(warm, group)

    def _step_warm(self, powers: dict[Tensor, float], group: dict[str, Any]) -> None:
        """Makes a step of the warm-up, by gradients, of the parameters of ``powers``."""
        lr, (beta1, beta2), eps, decay = group["lr"], group["betas"], group["eps"], group["weight_decay"]
        for parameter, power in powers.items():
            state = self.state[parameter]
            moments, step = (state["exp_avg"], state["exp_avg_sq"]), state["step"] + 1
            torch.ops.octavo.adamw_(parameter, parameter.grad, *moments, step, lr, beta1, beta2, eps, decay)
            self._count(state, power, group)  # afterwards: where the step finds no memory, nothing has changed

    @staticmethod
    def _count(state: dict[str, Any], power: float, group: dict[str, Any]) -> None:
        beta2 = group["betas"][1]
        state["step"] += 1
        state["power"] = beta2 * state["power"] + (1 - beta2) * power

    def _step_frozen(self, parameter: Tensor, group: dict[str, Any], power: float) -> None:
        """Makes a step after the freeze, by the momentum."""
        state, update = self.state[parameter], parameter.grad
        mean, preconditioner = state["exp_avg"], state["exp_avg_sq"]
        if self._handle is None:
            update = mean.lerp(update.float() * preconditioner, 1 - group["frozen_beta"])
        elif power == 0:  # on all ranks; DDP does not deliver the result for a parameter that no rank has used
            update = mean * group["frozen_beta"]
        torch.ops.octavo.frozen_adamw_(parameter, update, mean, *self._frozen_sizes(state, group))

    def _frozen_sizes(self, state: dict[str, Any], group: dict[str, Any]) -> tuple[float, float]:
        """Returns what the momentum is multiplied by, and the share of the parameter that it loses to weight decay."""
        return group["lr"] / self._growth(state, group["betas"][1]), group["lr"] * group["weight_decay"]

    def _first_state(self, parameter: Tensor) -> dict[str, Any]:
        state = self.state[parameter]
        tensors = {name: self._zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
        state.update(step=0, frozen=False, power=0.0, frozen_power=0.0, **tensors)
        return state

    @staticmethod
    def _power(state: dict[str, Any], beta2: float) -> float:
        """Returns the running mean square of the parameter's gradients, corrected for its start at zero."""
        return state["power"] / (1 - beta2 ** state["step"])

    def _growth(self, state: dict[str, Any], beta2: float) -> float:
        """Returns by what factor the root of the variance has grown since the freeze; at least 0.1."""
        return max(0.1, (self._power(state, beta2) / state["frozen_power"]) ** 0.5)

    def _finish_freeze(self) -> bool:
        """Does what is left of a freeze that failed midway, here or in the run whose state was loaded. Returns whether
        there was one."""
        is_begun = not self.frozen and any(state.get("frozen") for state in self._states().values())
        if not (self._must_freeze or is_begun):
            return False
        self._freeze()
        return True

    def _freeze(self) -> None:
        """Freezes what is not frozen yet, one parameter after another, because copies of all variances could find no
        memory. Where it fails, the next call goes on."""
        self._must_freeze = True
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state.get(parameter)
                # without any gradient all of the preconditioner would be 1 / eps
                if state and not state["frozen"] and state["power"] > 0:
                    self._freeze_state(state, group)
        for group in self.param_groups:
            group["frozen"] = True
        self._enter_phase()
        self._must_freeze = False

    def _freeze_state(self, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Freezes the variance of a parameter that had a gradient. Where it finds no memory, nothing has changed."""
        (beta1, beta2), step = group["betas"], state["step"]
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        torch.ops.octavo.freeze_variance_(square, step, beta2, group["eps"], group["variance_floor"])
        mean.mul_(square).div_(1 - beta1**step)
        state.update(frozen=True, frozen_power=self._power(state, beta2))

    # ---- the handle of octavo.compress

    @property
    def chooses_plans(self) -> bool:
        return True

    @property
    def phase(self) -> object:
        return super().phase, self.frozen, self.param_groups[0]["frozen_beta"]

    def first_plan(self, plan: Plan) -> Plan:
        return as_plan(self.warmup_plan)

    def require_plan(self, plan: Plan) -> None:
        self._require_magnitudes(plan)

    @outside_of_inference
    def _before_forward(self, *_: object) -> None:
        self._finish_freeze()  # before momenta are sent: the other ranks may have frozen their variances

    def _enter_phase(self) -> None:
        if self._handle is None:
            return
        if not self.frozen:
            self._handle._follow(as_plan(self.warmup_plan), {}, 0.0)
            return
        ours = {p: s for p, s in self._states().items() if s.get("frozen") and p in self._sent}
        frozen = {p: (s["exp_avg"], s["exp_avg_sq"]) for p, s in ours.items()}
        self._handle._follow(self._plan.for_momentum(), frozen, self.param_groups[0]["frozen_beta"])

    @property
    def _had_clips(self) -> bool:
        """Whether ``clip_grad_norm_`` was called for the gradients of this step, which a handle has averaged."""
        return self._handle.stats()["steps"] == self._clipped_step

    @property
    def _factor_of_clips(self) -> float:
        """What the calls of ``clip_grad_norm_`` in this step have multiplied its gradients by."""
        return self._clipped_by if self._had_clips else 1.0

    def _require_momenta(self, function: str) -> None:
        if self._handle is None or not self.frozen or self._factor_of_clips < 1.0:
            return
        self._require_delivered(
            function,
            "after the freeze .grad holds the averaged momentum, and it was changed after the ranks delivered it. Clip "
            "by optimizer.clip_grad_norm_(max_norm) instead of torch.nn.utils.clip_grad_norm_; a GradScaler must be "
            "given to octavo.compress(..., scaler=scaler) and must unscale before",
        )

    # ---- state

    @of_itself
    @outside_of_inference
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Raises ValueError for the state of another optimizer or of other shapes; nothing has changed then."""

        def check(saved: dict[str, Any]) -> None:
            require_group_options(self, saved, self._own_options)
            require_parameter_states(self, saved, lambda _: (self._names, frozenset()))

        warmup_steps, warmup_plan = self.warmup_steps, self.warmup_plan
        self._load_checked(state_dict, check)
        for group in self.param_groups:
            group.update(warmup_steps=warmup_steps, warmup_plan=warmup_plan)
        self._must_freeze = False
        self._enter_phase()


def _mean_square(gradient: Tensor) -> float:
    return gradient.float().square().mean().item() if gradient.numel() else 0.0
