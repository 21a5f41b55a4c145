# SPDX-License-Identifier: Apache-2.0
"""1-bit AdamW: AdamW whose momentum, not whose gradient, crosses the wire in one bit."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from octavo._C import Plan
from octavo.ddp import Handle


class OneBitAdamW(Optimizer):
    """AdamW in two phases, after 1-bit Adam (Tang et al. 2021).

    Adam divides by a running variance, and a one-bit gradient's variance says nothing: fed to plain AdamW, signs cost
    some 20 % of the final loss. So for ``warmup_steps`` (about 15 % of a run) this is AdamW on gradients sent in int4
    with error feedback. Then the variance is frozen into a preconditioner ``P = 1 / sqrt(v)``, and each rank sends
    ``beta * m + (1 - beta) * P * gradient`` by the handle's own plan (``sign+ef``); the average comes back as the new
    ``m``, which is the update. It happens in the communication hook, overlapped with backward: after the freeze
    ``parameter.grad`` holds ``m``, not a gradient, and must not be clipped.

    Three things differ from the paper, each for a measured reason (docs/quality.md). The momentum is preconditioned
    before it is sent, so that one scale suits all of a tensor. Its ``beta`` is ``frozen_beta``, 0.5: the feedback of
    one-bit errors is a delay of its own, and with 0.9 on top the update lags behind the loss. And the frozen variance
    keeps its pattern but not its size: it follows the mean square of each tensor's gradients, one float that travels
    with the bits.

    ``handle``: from ``octavo.compress``; None in a single process, where nothing crosses a wire. ``variance_floor``:
    the frozen root of the variance is at least this part of its mean over 256 elements. A parameter that had no
    gradient in the warm-up stays on plain AdamW. State per parameter, float32: ``exp_avg`` and ``exp_avg_sq`` (after
    the freeze: ``m`` and ``P``). Save ``handle.state_dict()`` with it.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        warmup_steps: int,
        handle: Handle | None = None,
        warmup_plan: str | Plan = "int4+ef",
        variance_floor: float = 0.3,
        frozen_beta: float = 0.5,
    ):
        _require(lr >= 0, "lr of at least 0", lr)
        _require(all(0 <= beta < 1 for beta in betas), "betas in [0, 1)", betas)
        _require(0 <= frozen_beta < 1, "frozen_beta in [0, 1)", frozen_beta)
        _require(eps >= 0, "eps of at least 0", eps)
        _require(
            warmup_steps >= 1,
            "warmup_steps of at least 1, since the variance is learnt in them",
            warmup_steps,
        )
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        _require(len({group["betas"] for group in self.param_groups}) == 1, "the same betas in all groups", betas)
        _require_handle(handle, [parameter for group in self.param_groups for parameter in group["params"]])
        self.warmup_steps = warmup_steps
        self.variance_floor = variance_floor
        self.frozen_beta = frozen_beta
        self._handle = handle
        self._steps = 0
        if handle is not None:
            self._momentum_plan = handle.plan.for_momentum()
            _require(not handle.plan.votes, "a plan that keeps magnitudes, such as sign+ef", handle.plan)
            handle.set_plan(warmup_plan)

    @property
    def frozen(self) -> bool:
        """Whether the warm-up is over: gradients are then momenta."""
        return self._steps >= self.warmup_steps

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        powers = self._handle.gradient_powers() if self._handle is not None else {}
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_parameter(parameter, group, powers.get(parameter))
        self._steps += 1
        if self._steps == self.warmup_steps:
            self._freeze()
        return loss

    def _step_parameter(self, parameter: Tensor, group: dict[str, Any], power: float | None) -> None:
        if parameter.grad.is_sparse:
            raise RuntimeError("[optim.OneBitAdamW] expected dense gradients, got a sparse one; use torch's SparseAdam")
        state = self.state[parameter] or self._first_state(parameter)
        lr, (beta1, beta2), eps, decay = group["lr"], group["betas"], group["eps"], group["weight_decay"]
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        if power is None:
            power = parameter.grad.float().square().mean().item() if parameter.numel() else 0.0
        state["step"] += 1
        state["power"] = beta2 * state["power"] + (1 - beta2) * power
        if not state["frozen"]:
            step = state["step"]
            torch.ops.octavo.adamw_(parameter, parameter.grad, mean, square, step, lr, beta1, beta2, eps, decay)
            return
        update = parameter.grad
        if self._handle is None:
            update = mean.lerp(update.float() * square, 1 - self.frozen_beta)
        torch.ops.octavo.frozen_adamw_(parameter, update, mean, lr / self._growth(state, beta2), lr * decay)

    def _first_state(self, parameter: Tensor) -> dict[str, Any]:
        state = self.state[parameter]
        state.update(step=0, frozen=False, power=0.0, frozen_power=0.0)
        for key in ("exp_avg", "exp_avg_sq"):
            state[key] = torch.zeros_like(parameter, dtype=torch.float32, memory_format=torch.preserve_format)
        return state

    @staticmethod
    def _power(state: dict[str, Any], beta2: float) -> float:
        """The running mean square of the parameter's gradients, corrected for its start at zero."""
        return state["power"] / (1 - beta2 ** state["step"])

    def _growth(self, state: dict[str, Any], beta2: float) -> float:
        """How much larger the root of the variance has become since the freeze; at least a tenth of it is left."""
        if state["frozen_power"] == 0:
            return 1.0
        return max(0.1, (self._power(state, beta2) / state["frozen_power"]) ** 0.5)

    def _freeze(self) -> None:
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                if not (state := self.state.get(parameter)):
                    continue
                mean, square, step = state["exp_avg"], state["exp_avg_sq"], state["step"]
                torch.ops.octavo.freeze_variance_(square, step, beta2, group["eps"], self.variance_floor)
                mean.mul_(square).div_(1 - beta1**step)
                state["frozen"] = True
                state["frozen_power"] = self._power(state, beta2)
        if self._handle is not None:
            self._handle.drop_residuals()  # they are parts of gradients, and momenta are of another size
            self._enter_momentum_phase()

    def _enter_momentum_phase(self) -> None:
        self._handle.set_plan(self._momentum_plan)
        frozen = {p: (s["exp_avg"], s["exp_avg_sq"]) for p, s in self.state.items() if s["frozen"]}
        self._handle.set_momentum(frozen, self.frozen_beta)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "onebit": {"steps": self._steps, "warmup_steps": self.warmup_steps}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        onebit = state_dict.get("onebit")
        if onebit is None or onebit["warmup_steps"] != self.warmup_steps:
            raise ValueError(
                f"[optim.OneBitAdamW] expected the state of a OneBitAdamW with warmup_steps {self.warmup_steps}, got "
                f"{'another optimizer' if onebit is None else onebit['warmup_steps']}"
            )
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "onebit"})
        for state in self.state.values():  # torch casts state to the parameter's dtype; ours is float32
            for key in ("exp_avg", "exp_avg_sq"):
                state[key] = state[key].float()
        self._steps = onebit["steps"]
        if self.frozen and self._handle is not None:
            self._enter_momentum_phase()


def _require_handle(handle: Handle | None, parameters: list[Tensor]) -> None:
    """Without it, or with that of another model, signs would feed plain AdamW, and nobody would say so."""
    if handle is None:
        ranks = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        _require(ranks == 1, f"handle=octavo.compress(...), since there are {ranks} ranks", "none")
        return
    if not isinstance(handle, Handle):
        raise TypeError(f"[optim.OneBitAdamW] expected handle as octavo.Handle, got {type(handle).__name__}")
    known = set(handle.parameters)
    strangers = sum(parameter.requires_grad and parameter not in known for parameter in parameters)
    _require(strangers == 0, "parameters of the model that the handle compresses", f"{strangers} others")


def _require(condition: bool, expected: str, got: Any) -> None:
    if not condition:
        raise ValueError(f"[optim.OneBitAdamW] expected {expected}, got {got}")
