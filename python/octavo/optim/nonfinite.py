# SPDX-License-Identifier: Apache-2.0
"""What optimizers do about gradients that are not finite."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from octavo.finite import all_finite
from octavo.optim.shards import any_rank, local

NONFINITE = ("skip_element", "skip_step", "raise")  # the values of the option ``nonfinite``


class NothingChanged(FloatingPointError):
    """A gradient is not finite, and ``nonfinite="raise"``: no rank has changed a parameter or a state."""


def finite_on_all_ranks(parameters: list[Tensor]) -> bool:
    """Whether the gradients are finite on all ranks that have a shard of them. Waits for the devices."""
    return not any_rank(not all_finite(local(p.grad) for p in parameters), parameters)


class NonfiniteFlags:
    """A flag on each device: whether steps have left elements alone because of their gradients. Operators set it there,
    so that no step waits for the device."""

    def __init__(self) -> None:
        self._flags: dict[torch.device, Tensor] = {}

    def on(self, device: torch.device) -> Tensor:
        """Returns the flag on this device."""
        if device not in self._flags:
            self._flags[device] = torch.zeros((), dtype=torch.int32, device=device)
        return self._flags[device]

    def set_on(self, devices: Iterable[torch.device]) -> None:
        for device in devices:
            self.on(device).fill_(1)

    def clear(self) -> bool:
        """Clears the flags, and returns whether any was set. Waits for the devices."""
        was_set = any(bool(flag.item()) for flag in self._flags.values())
        for flag in self._flags.values():
            flag.zero_()
        return was_set
