# SPDX-License-Identifier: Apache-2.0
"""States in managed memory, for optimizers that make their states themselves."""

from __future__ import annotations

from os import PathLike
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from octavo._C import Arena
from octavo.optim.checks import page_folder


class ManagedStates(Optimizer):
    """Makes states, in managed memory where the optimizer is paged. With a device this is shared memory of SYCL or
    CUDA, whose pages the driver moves to where they are used. On the CPU it is memory that the system may page out or,
    with a directory, files there. A copy of the optimizer is paged as the optimizer is; loading a state does not change
    that."""

    _is_paged = False
    _page_dir: str | None = None

    def _set_paging(self, is_paged: bool, page_dir: str | PathLike | None) -> None:
        """To be called before the first state is made. Raises what ``page_folder`` raises."""
        self._is_paged = is_paged
        self._page_dir = page_folder(page_dir, is_paged, f"optim.{type(self).__name__}")

    def _zeros_like(self, parameter: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Returns zeros on the parameter's device, in its shape and memory order."""
        if not self._is_paged:
            return torch.zeros_like(parameter, dtype=dtype, memory_format=torch.preserve_format)
        in_files = self._page_dir is not None and parameter.device.type == "cpu"
        arena = Arena(parameter.device, directory=self._page_dir) if in_files else Arena.of(parameter.device)
        return arena.zeros_like(parameter, dtype)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_is_paged": self._is_paged, "_page_dir": self._page_dir}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if not self._is_paged or "defaults" not in state:  # a load: the subclass makes the states
            return
        for parameter, of_one in self.state.items():
            for name, value in of_one.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    of_one[name] = self._zeros_like(parameter, value.dtype).copy_(value)
