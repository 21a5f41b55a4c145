# SPDX-License-Identifier: Apache-2.0
"""States in managed memory, for optimizers that make their states themselves."""

from __future__ import annotations

from os import PathLike
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from octavo.optim.checks import page_folder
from octavo.optim.state_memory import StateMemory


class ManagedStates(Optimizer):
    """Makes states, in managed memory where the optimizer is paged (``StateMemory``). A copy of the optimizer is paged
    as the optimizer is; loading a state does not change that."""

    _is_paged = False
    _memory: StateMemory

    def _set_paging(self, is_paged: bool, page_dir: str | PathLike | None) -> None:
        """To be called before the first state is made. Raises ValueError for an ``is_paged`` that is no
        bool, and what ``page_folder`` raises."""
        name = type(self).__name__
        if not isinstance(is_paged, bool):
            raise ValueError(f"[optim.{name}] expected is_paged as True or False, got {is_paged!r}")
        self._is_paged = is_paged
        self._memory = StateMemory(name, page_folder(page_dir, is_paged, f"optim.{name}"))

    def _zeros_like(self, parameter: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Returns zeros on the parameter's device, in its shape and memory order."""
        return self._memory.zeros_like(parameter, dtype, self._is_paged)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_is_paged": self._is_paged, "_page_dir": self._memory.page_dir}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "defaults" in state:  # this is a copy, which has no attributes yet
            self._memory = StateMemory(type(self).__name__, state.pop("_page_dir"))
        super().__setstate__(state)
        if not self._is_paged or "defaults" not in state:  # a load: the subclass makes the states
            return
        for parameter, of_one in self.state.items():
            for name, value in of_one.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    of_one[name] = self._zeros_like(parameter, value.dtype).copy_(value)
