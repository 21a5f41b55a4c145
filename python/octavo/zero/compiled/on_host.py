# SPDX-License-Identifier: Apache-2.0
"""What an engine may send to the host between steps: an optimizer's state, and a rank's parts of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from octavo import _C
from octavo.hooks import while_alive
from octavo.optim.shards import local


class OnHost:
    """Keeps an optimizer usable whose state is on the host while graphs compute. By the optimizer's own hooks, the
    state comes back before a step, and before it is saved or loaded. Not thread-safe."""

    def __init__(self, engine: _C.Engine, parts: Mapping[int, Tensor], optimizer: Optimizer):
        """``parts``: the optimizer's parameters, by id."""
        self._engine, self._parts, self._optimizer = engine, parts, optimizer
        self._is_followed = False

    def states(self) -> dict[int, list[Tensor]]:
        """Returns, by the parameter's id, what the optimizer keeps of each parameter on the device and does not page by
        itself."""
        of_parts = {id: self._optimizer.state.get(part, {}) for id, part in self._parts.items()}
        return {id: [local(value) for value in state.values() if _may_move(value)] for id, state in of_parts.items()}

    def part_bytes(self, id: int) -> int:
        return local(self._parts[id]).nbytes

    def follow(self) -> None:
        """Tells the engine, from now on, what the optimizer keeps, also when that has changed. Does nothing where it is
        called again, which may be in the middle of a pass, while the values are away."""
        if self._is_followed:
            return
        restore, tell = while_alive(self._restore), while_alive(self._tell)
        self._optimizer.register_step_pre_hook(restore)
        self._optimizer.register_step_post_hook(tell)
        self._optimizer.register_state_dict_pre_hook(restore)
        self._optimizer.register_load_state_dict_pre_hook(restore)
        self._optimizer.register_load_state_dict_post_hook(tell)
        self._is_followed = True
        self._tell()

    def _restore(self, *_: Any) -> None:
        self._engine.restore()

    def _tell(self, *_: Any) -> None:
        for id, states in self.states().items():
            self._engine.set_states(id, states)


def paging_optimizer(optimizer: Optimizer) -> str:
    """Returns the name of the optimizer's class where it pages all that it keeps; otherwise an empty text."""
    pages = [group.get("is_paged", getattr(optimizer, "_is_paged", False)) for group in optimizer.param_groups]
    return type(optimizer).__name__ if all(pages) else ""


def _may_move(value: Any) -> bool:
    """Whether a value of a state is worth sending to the host: a tensor on a device that is not paged. Counts of steps
    are too small."""
    if not isinstance(value, Tensor) or value.ndim == 0:
        return False
    own = local(value)
    return own.device.type != "cpu" and own.numel() > 0 and not _C.is_managed(own)
