# SPDX-License-Identifier: Apache-2.0
"""1-bit LAMB: LAMB that sends its momentum, not its gradient, in one bit per value."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from octavo._C import Plan
from octavo.arguments import is_number
from octavo.optim.onebit_adamw import OneBitAdamW


class OneBitLamb(OneBitAdamW):
    """LAMB in two phases, after 1-bit LAMB (Li et al. 2021), for large batches.

    >>> optimizer = octavo.optim.OneBitLamb(model.parameters(), lr=1e-2, warmup_steps=round(0.15 * steps))
    >>> handle = octavo.compress(ddp, "sign+ef", optimizer=optimizer)

    LAMB (You et al. 2020) multiplies the learning rate of each tensor by a coefficient: the norm of the tensor divided
    by the norm of Adam's direction, within ``coefficient_bounds``, and 1 where either norm is 0. For ``warmup_steps``
    this is LAMB on gradients sent by ``warmup_plan``. Then variance and momenta are treated as in ``OneBitAdamW``, and
    each coefficient is frozen, too, at its running mean with decay ``coefficient_beta``. Afterwards it is multiplied by
    a factor that follows the variance. The factor is within ``factor_bounds``, and changes by at most ``factor_change``
    of itself in a step.

    Two things differ from the paper:

    - There the factor comes from a variance that is recovered, element by element, from momenta of which one bit is
      left. Here it comes from the mean square of the tensor's gradients, a float that is sent with the bits: the factor
      is the root of how much smaller this mean square has become.
    - There momenta are scaled before they are sent, so that those of all tensors are alike. Here the preconditioner,
      which is applied before, does it.

    All else is as in ``OneBitAdamW``, with LAMB in place of plain AdamW: the handle, clipping, the state and what is
    refused. The state of a parameter has two more scalars, ``coefficient`` and ``factor``.
    """

    _own_options = frozenset({"frozen", "factor_bounds"})
    _names = OneBitAdamW._names | {"coefficient", "factor"}

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        warmup_steps: int,
        warmup_plan: str | Plan = "int4+ef",
        variance_floor: float = 0.3,
        frozen_beta: float = 0.5,
        coefficient_bounds: tuple[float, float] = (0.01, 10.0),
        coefficient_beta: float = 0.9,
        factor_bounds: tuple[float, float] = (0.5, 4.0),
        factor_change: float = 0.1,
        is_paged: bool = False,
        page_dir: str | PathLike | None = None,
    ):
        self._more_defaults = dict(
            coefficient_bounds=coefficient_bounds,
            coefficient_beta=coefficient_beta,
            factor_bounds=factor_bounds,
            factor_change=factor_change,
        )
        phases = dict(warmup_steps=warmup_steps, warmup_plan=warmup_plan)
        frozen = dict(variance_floor=variance_floor, frozen_beta=frozen_beta)
        paging = dict(is_paged=is_paged, page_dir=page_dir)
        super().__init__(params, lr, betas, eps, weight_decay, **phases, **frozen, **paging)

    def _require_valid(self, group: dict[str, Any]) -> None:
        super()._require_valid(group)
        for name in ("coefficient_bounds", "factor_bounds"):
            bounds = group[name]
            are_two = isinstance(bounds, Sequence) and len(bounds) == 2 and all(map(is_number, bounds))
            are_bounds = are_two and 0 < bounds[0] <= bounds[1]
            self._require(are_bounds, f"two {name} above 0, the lower one first", repr(bounds))
        beta, change = group["coefficient_beta"], group["factor_change"]
        self._require(is_number(beta) and 0 <= beta < 1, "coefficient_beta in [0, 1)", repr(beta))
        self._require(is_number(change) and 0 < change < 1, "factor_change in (0, 1)", repr(change))

    def _first_state(self, parameter: Tensor) -> dict[str, Any]:
        state = super()._first_state(parameter)
        state.update(coefficient=0.0, factor=1.0)
        return state

    def _step_warm(self, powers: dict[Tensor, float], group: dict[str, Any]) -> None:
        for device in dict.fromkeys(parameter.device for parameter in powers):
            self._step_lamb(
                {parameter: power for parameter, power in powers.items() if parameter.device == device}, group
            )

    def _step_lamb(self, powers: dict[Tensor, float], group: dict[str, Any]) -> None:
        parameters = list(powers)
        states = [self.state[parameter] for parameter in parameters]
        coefficients = torch.empty(len(parameters), dtype=torch.float64, device="cpu")
        torch.ops.octavo.lamb_(
            parameters,
            [parameter.grad for parameter in parameters],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [state["step"] + 1 for state in states],
            coefficients,
            group["lr"],
            *group["betas"],
            group["eps"],
            group["weight_decay"],
            *group["coefficient_bounds"],
        )
        beta = group["coefficient_beta"]
        for state, power, coefficient in zip(states, powers.values(), coefficients.tolist(), strict=True):
            self._count(state, power, group)
            state["coefficient"] = beta * state["coefficient"] + (1 - beta) * coefficient

    def _freeze_state(self, state: dict[str, Any], group: dict[str, Any]) -> None:
        super()._freeze_state(state, group)  # first: where it fails, nothing has changed
        state["coefficient"] /= 1 - group["coefficient_beta"] ** state["step"]  # corrected for its start at zero

    def _frozen_sizes(self, state: dict[str, Any], group: dict[str, Any]) -> tuple[float, float]:
        (least, greatest), change = group["factor_bounds"], group["factor_change"]
        wanted = min(max(1 / self._growth(state, group["betas"][1]), least), greatest)
        state["factor"] = min(max(wanted, state["factor"] * (1 - change)), state["factor"] * (1 + change))
        step_size = group["lr"] * state["coefficient"] * state["factor"]
        return step_size, step_size * group["weight_decay"]
