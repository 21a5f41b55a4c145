# SPDX-License-Identifier: Apache-2.0
"""Stage 3 without ``torch.compile``: when parameters are whole."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.utils._pytree import tree_leaves

from octavo import _C

GRAPH = 0  # without torch.compile all parameters are of one


class Gathering:
    """Parameters are whole while a module uses them, forward and backward; between, their memory has no bytes. Views
    that autograd has saved are of the same memory, and valid when it is filled again.

    While Dynamo traces a module nothing is done: compiled graphs gather for themselves, what they call otherwise is as
    without them.

    Parameters travel in transfers of some MiB, one of which is under way while modules work with the last one: for
    those modules that came next in the pass before. Where others come, their parameters are gathered alone. What comes
    again soon, as the last modules of a forward pass do, stays: ``kept_bytes`` is what may be needed until then.
    """

    def __init__(
        self,
        engine: _C.Engine,
        ids: Mapping[nn.Parameter, int],
        model: nn.Module,
        transfer_bytes: int,
        kept_bytes: int,
    ):
        self._engine, self._ids = engine, ids
        self._transfer_bytes, self._kept_bytes = transfer_bytes, kept_bytes
        self._bytes = {p: p.untyped_storage().nbytes() for p in ids}
        self._users = dict.fromkeys(ids, 0)  # modules that are at work with it
        self._moving: set[Tensor] = set()
        self._visits: list[int] = []  # modules of this pass, in the order in which they needed their parameters
        self._last_visits: list[int] = []
        self._own: list[list[Tensor]] = []  # by module
        for parameter in ids:
            parameter.untyped_storage().resize_(0)
        model.register_forward_pre_hook(self._before_pass)
        for module in model.modules():
            own = [p for p in module.parameters(recurse=False) if p in self._users]
            if own:
                number = len(self._own)
                self._own.append(own)
                module.register_forward_pre_hook(partial(self._before_forward, number))
                module.register_forward_hook(partial(self._after_forward, number), always_call=True)

    def _before_pass(self, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            self._visits.clear()  # what came before had no backward pass

    def gather(self, parameters: Iterable[Tensor]) -> None:
        """Until they are whole."""
        needed = list(parameters)
        self._start(needed)
        for parameter in needed:
            if parameter in self._moving:
                self._engine.wait_allgather(self._ids[parameter])
                self._moving.discard(parameter)

    def gather_all(self) -> None:
        """All of them, until `release_all`."""
        for parameter in self._users:
            self._users[parameter] += 1
        self.gather(self._users)

    def release(self, parameter: Tensor) -> None:
        if self._users[parameter] > 0 or parameter.untyped_storage().nbytes() == 0:
            return
        self.gather([parameter])  # it may be on its way for a module that did not come
        self._engine.release_param(GRAPH, self._ids[parameter], 1)
        parameter.untyped_storage().resize_(0)

    def release_all(self) -> None:
        """Also what had no gradient in this backward pass."""
        for parameter in self._users:
            self._users[parameter] = 0
            self.release(parameter)

    def end_pass(self) -> None:
        self.release_all()
        self._last_visits, self._visits = self._visits, []

    def _start(self, parameters: Iterable[Tensor]) -> None:
        """In one transfer, those that are not whole nor on their way."""
        needed = [p for p in parameters if p.untyped_storage().nbytes() == 0 and self._bytes[p] > 0]
        if not needed:
            return
        for parameter in needed:
            parameter.untyped_storage().resize_(self._bytes[parameter])
        self._engine.gather_into([self._ids[p] for p in needed], [p.data for p in needed])
        self._moving.update(needed)

    def _comes_soon(self, parameter: Tensor) -> bool:
        """Whether a module needs it before others need too much."""
        place, before = len(self._visits), set[Tensor]()
        if self._last_visits[place - 1 : place] != self._visits[-1:]:
            return False
        needed = self._bytes[parameter]
        for number in self._last_visits[place:]:
            for other in self._own[number]:
                if other is parameter:
                    return True
                needed += 0 if other in before else self._bytes[other]
                before.add(other)
            if needed > self._kept_bytes:
                return False
        return False

    def _visit(self, number: int) -> None:
        """A module needs its parameters."""
        place = len(self._visits)
        self._visits.append(number)
        is_known = self._last_visits[place : place + 1] == [number]
        if is_known:
            self._start_ahead(place, 1)
        self.gather(self._own[number])
        if is_known:
            self._start_ahead(place + 1, self._transfer_bytes)

    def _start_ahead(self, place: int, enough_bytes: int) -> None:
        """Starts a transfer for the visits of the last pass from the first one on whose parameters are not there or on
        their way, unless those of the visits from ``place`` to it have enough bytes."""
        visits = self._last_visits[place:]
        for i, number in enumerate(visits):
            own = self._own[number]
            if any(p.untyped_storage().nbytes() == 0 for p in own if self._bytes[p] > 0):
                return self._start(self._of_a_transfer(visits[i:]))
            enough_bytes -= sum(self._bytes[p] for p in own)
            if enough_bytes <= 0:
                return None
        return None

    def _of_a_transfer(self, visits: list[int]) -> Iterable[Tensor]:
        together: dict[Tensor, None] = {}
        for number in visits:
            together.update(dict.fromkeys(self._own[number]))
            if sum(self._bytes[p] for p in together) >= self._transfer_bytes:
                break
        return together

    def _before_forward(self, number: int, *_: Any) -> None:
        if torch.compiler.is_compiling():
            return
        for parameter in self._own[number]:
            self._users[parameter] += 1
        self._visit(number)

    def _after_forward(self, number: int, _module: nn.Module, _arguments: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        for parameter in self._own[number]:
            self._users[parameter] -= 1
            if not (torch.is_grad_enabled() and self._comes_soon(parameter)):
                self.release(parameter)
        outputs = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad]
        if outputs and torch.is_grad_enabled():
            register_multi_grad_hook(outputs, lambda _: self._visit(number), mode="any")
