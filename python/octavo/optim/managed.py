# SPDX-License-Identifier: Apache-2.0
"""States in managed memory, for optimizers that make their states themselves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Set
from os import PathLike
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from octavo.arguments import page_folder
from octavo.optim.base import Saved, outside_of_inference, states_of_none
from octavo.optim.checks import OF_ELEMENTS, require_dense, require_steppable
from octavo.optim.state_arenas import StateArenas


class ManagedStates(Optimizer):
    """Makes states, in managed memory where the optimizer is paged (``StateArenas``). A copy of the optimizer is paged
    as the optimizer is; loading a state does not change that."""

    _in_own_dtype: ClassVar[Set[str]] = frozenset()  # the states in the dtype of their parameter; others are float32
    _is_paged = False
    _memory: StateArenas

    def _set_paging(self, is_paged: bool, page_dir: str | PathLike | None) -> None:
        """To be called before the first state is made. Raises what ``page_folder`` raises."""
        name = type(self).__name__
        self._memory = StateArenas(name, page_folder(page_dir, is_paged, f"optim.{name}"))
        self._is_paged = is_paged

    def _zeros_like(self, parameter: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Returns zeros on the parameter's device, in its shape and memory order."""
        return self._memory.zeros_like(parameter, dtype, self._is_paged)

    def _require_steppable(self) -> None:
        """Raises, before any parameter has moved, where the step of one that has a gradient could not be made:
        RuntimeError for a sparse gradient, otherwise ValueError."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    require_dense(self, parameter.grad)
                    require_steppable(self, parameter, self.state.get(parameter, {}), self._in_own_dtype)

    # ---- copies and checkpoints

    def state_dict(self) -> dict[str, Any]:
        self._memory.require_own_process()
        return super().state_dict()

    def __getstate__(self) -> dict[str, Any]:
        self._memory.require_own_process()
        return super().__getstate__() | {"_is_paged": self._is_paged, "_page_dir": self._memory.page_dir}

    @outside_of_inference
    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restores a copy, or what ``load_state_dict`` was given. Nothing has changed where it finds no memory."""
        if "defaults" in state:  # this is a copy, which has no attributes yet
            self._is_paged, self._memory = state["_is_paged"], StateArenas(type(self).__name__, state["_page_dir"])
        saved = {parameter: Saved.of(one) for parameter, one in state["state"].items() if isinstance(parameter, Tensor)}
        states = {parameter: self._restored(parameter, one) for parameter, one in saved.items()}
        super().__setstate__(state | {"state": defaultdict(dict, states | states_of_none(state["state"]))})
        self._memory.belongs_here()

    def _restored(self, parameter: Tensor, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Makes a parameter's state from that of a copy or a saved one. Tensors are made anew: only so are they in this
        optimizer's memory, in their dtype (a preconditioner may be infinite in that of the parameter) and in the
        parameter's memory order, in which the hook reads them."""
        state = dict(saved)
        for name in OF_ELEMENTS & saved.keys():
            dtype = parameter.dtype if name in self._in_own_dtype else torch.float32
            state[name] = self._zeros_like(parameter, dtype).copy_(saved[name])
        return state
