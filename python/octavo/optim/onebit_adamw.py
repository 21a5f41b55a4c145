# SPDX-License-Identifier: Apache-2.0
"""1-bit AdamW: AdamW whose momentum, not whose gradient, crosses the wire in one bit."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from octavo._C import Plan
from octavo.ddp import Handle


class OneBitAdamW(Optimizer):
    """AdamW in two phases (1-bit Adam, Tang et al. 2021).

    Adam divides by a running variance, and a one-bit gradient's variance says nothing: fed to plain AdamW, signs cost
    some 20 % of the final loss. So for ``warmup_steps`` (about 15 % of a run) this is AdamW on gradients sent in int4
    with error feedback. Then the variance is frozen, and each rank sends ``beta1 * m + (1 - beta1) * gradient`` by the
    handle's own plan (``sign+ef``); the average comes back as the new momentum ``m``. It happens in the communication
    hook, overlapped with backward: after the freeze ``parameter.grad`` holds the momentum, not a gradient (do not
    clip it; its size is that of the momentum).

    ``handle``: from ``octavo.compress``; None in a single process, where nothing crosses a wire. ``variance_floor``:
    the frozen root of the variance is at least this part of its mean over 256 elements. A parameter that had no
    gradient in the warm-up stays on plain AdamW. State per parameter, float32: ``exp_avg`` and ``exp_avg_sq`` (after
    the freeze: the denominator). Save ``handle.state_dict()`` with it.
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
    ):
        _require(lr >= 0, "lr of at least 0", lr)
        _require(all(0 <= beta < 1 for beta in betas), "betas in [0, 1)", betas)
        _require(eps >= 0, "eps of at least 0", eps)
        _require(
            warmup_steps >= 1,
            "warmup_steps of at least 1, since the variance is learnt in them",
            warmup_steps,
        )
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        _require(
            len({group["betas"] for group in self.param_groups}) == 1, "the same betas in all groups", betas
        )
        self.warmup_steps = warmup_steps
        self.variance_floor = variance_floor
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
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_parameter(parameter, group)
        self._steps += 1
        if self._steps == self.warmup_steps:
            self._freeze()
        return loss

    def _step_parameter(self, parameter: Tensor, group: dict[str, Any]) -> None:
        if parameter.grad.is_sparse:
            raise RuntimeError(
                "[optim.OneBitAdamW] expected dense gradients, got a sparse one; use torch's SparseAdam"
            )
        state = self.state[parameter]
        if not state:
            state.update(step=0, frozen=False)
            for key in ("exp_avg", "exp_avg_sq"):
                state[key] = torch.zeros_like(
                    parameter, dtype=torch.float32, memory_format=torch.preserve_format
                )
        state["step"] += 1
        lr, (beta1, beta2), eps, decay = group["lr"], group["betas"], group["eps"], group["weight_decay"]
        mean, square, step = state["exp_avg"], state["exp_avg_sq"], state["step"]
        if not state["frozen"]:
            torch.ops.octavo.adamw_(
                parameter, parameter.grad, mean, square, step, lr, beta1, beta2, eps, decay
            )
            return
        momentum = parameter.grad
        if self._handle is None:
            momentum = mean.lerp(momentum.float(), 1 - beta1)
        torch.ops.octavo.frozen_adamw_(parameter, momentum, mean, square, step, lr, beta1, decay)

    def _freeze(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if state := self.state.get(parameter):
                    torch.ops.octavo.freeze_variance_(
                        state["exp_avg_sq"],
                        state["step"],
                        group["betas"][1],
                        group["eps"],
                        self.variance_floor,
                    )
                    state["frozen"] = True
        if self._handle is not None:
            self._handle.drop_residuals()  # they are parts of gradients, and momenta are of another size
            self._enter_momentum_phase()

    def _enter_momentum_phase(self) -> None:
        self._handle.set_plan(self._momentum_plan)
        momenta = {p: state["exp_avg"] for p, state in self.state.items() if state["frozen"]}
        self._handle.set_momentum(momenta, self.param_groups[0]["betas"][0])

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


def _require(condition: bool, expected: str, got: Any) -> None:
    if not condition:
        raise ValueError(f"[optim.OneBitAdamW] expected {expected}, got {got}")
