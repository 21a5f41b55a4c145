# SPDX-License-Identifier: Apache-2.0
"""Stage 3 without ``torch.compile``: decides when parameters are whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook

from octavo import _C
from octavo.hooks import remove_after
from octavo.zero.first_uses import FirstUses
from octavo.zero.module_hooks import (
    is_in_backward,
    let_last_be_first,
    memory_of,
    own_hook,
    parameters_used_by,
    tensors_in,
)
from octavo.zero.visits import Visits
from octavo.zero.whole_parameters import GRAPH, WholeParameters


@dataclass(eq=False)
class Call:
    """A forward call of a module, which its hooks in the graph hold."""

    used: int | None
    """How many parameters had been used for the first time when it ended; None for a call in a backward pass."""


class Gathering:
    """Makes parameters whole while a module uses them, in its forward and its backward pass, and releases them between
    these uses.

    While Dynamo traces a module nothing is done: compiled graphs gather for themselves, and what they call besides
    gathers as without them.

    Parameters are sent in transfers of ``transfer_bytes``. One transfer is under way while modules work with the one
    before: it is for the modules that came next in the pass before. Where other modules come, their parameters are
    gathered alone. A parameter that is used again soon, such as those of the last modules of a forward pass, stays
    whole: ``kept_bytes`` is how much may be needed until then.
    """

    def __init__(
        self,
        engine: _C.Engine,
        parameters: Mapping[str, nn.Parameter],
        model: nn.Module,
        transfer_bytes: int,
        kept_bytes: int,
    ):
        self._engine = engine
        self._transfer_bytes, self._kept_bytes = transfer_bytes, kept_bytes
        # lists by parameter; parameters are numbers from here on, because a visit of a module must cost little
        ids = {parameter: id for id, parameter in enumerate(parameters.values())}
        self._wholes = WholeParameters(engine, parameters)
        self._users: list[list[int]] = [[] for _ in ids]  # by parameter: the modules that have it
        self._backward_of: list[int | None] = [None] * len(ids)  # torch's number of the backward pass that needs each
        self._uses = FirstUses()  # since the last backward pass
        # lists by module; modules are numbers, too
        self._own: list[list[int]] = []  # the parameters of each
        self._visits = Visits(self._own, self._wholes.bytes)
        self._at_work: list[int] = []  # how many forward passes each makes now
        # the calls of each whose backward passes are to come; a graph that is dropped has none
        self._calls: list[WeakSet[Call]] = []
        # for each open context (a call of `gather_all` without its `leave_all`): `_at_work` when it began
        self._contexts: list[list[int]] = []
        handles = []
        for module in model.modules():
            own = [ids[p] for p in parameters_used_by(module) if p in ids]
            if own:
                number = len(self._own)
                self._own.append(own)
                self._at_work.append(0)
                self._calls.append(WeakSet())
                for id in own:
                    self._users[id].append(number)
                # before the user's own hooks, which may read parameters, as the hook of torch's old weight_norm does
                before, after = own_hook(self._before_forward, number), own_hook(self._after_forward, number)
                handles.append(module.register_forward_pre_hook(before, prepend=True))
                handles.append(module.register_forward_hook(after, always_call=True))
        # last, so that it runs before the model's own visit is noted
        handles.append(model.register_forward_pre_hook(own_hook(self._before_pass), prepend=True))
        remove_after(self, handles)

    def _before_pass(self, *_: Any) -> None:
        if not self._contexts:
            self._visits.forget_pass()

    def gather_all(self) -> None:
        """Gathers all parameters, which stay whole until as many calls of `leave_all`."""
        self._contexts.append(list(self._at_work))
        try:
            self._gather_those_of_contexts()
        except BaseException:  # what has arrived stays: other ranks, which are in their context, do not gather it again
            self._contexts.pop()
            raise

    def leave_all(self) -> None:
        """Releases what no other context and no module at work needs, such as one whose forward has the context."""
        # what began in the context has ended, too, or was broken off without a call of hooks
        self._at_work = list(map(min, self._at_work, self._contexts.pop()))
        self._release_unused()

    def _gather_those_of_contexts(self) -> None:
        """Gathers all parameters. Two transfers are under way at a time, so that not all parameters are in buffers."""
        before = self._wholes.moving
        for ids in self._transfers():
            self._wholes.start(ids)
            self._wholes.gather(before)
            before = ids
        self._wholes.gather(before)

    def _transfers(self) -> Iterator[list[int]]:
        """Yields the parameters that are neither whole nor being gathered, by transfer."""
        together: list[int] = []
        needed_bytes = 0
        for id in range(len(self._wholes.bytes)):
            if id in self._wholes.there:
                continue
            together.append(id)
            needed_bytes += self._wholes.bytes[id]
            if needed_bytes >= self._transfer_bytes:
                yield together
                together, needed_bytes = [], 0
        if together:
            yield together

    def _is_used(self, id: int) -> bool:
        return bool(self._contexts) or any(self._at_work[number] for number in self._users[id])

    def release(self, id: int) -> None:
        """Releases a parameter that no context holds and no module at work needs."""
        if not self._is_used(id):
            self._wholes.release(id)

    def release_after_gradient(self, id: int) -> None:
        """Releases a parameter that has its gradient, unless it may be needed again: it then stays whole until the end.
        A backward pass inside of that of its module, as reentrant checkpointing makes one for each segment, may be
        followed by others. And a rank that has left the parameter out of an earlier call of a module has its gradient
        before ranks that have not; what is whole must not depend on that."""
        is_last = not any(self._calls[number] for number in self._users[id])
        if is_last and self._backward_of[id] in (None, torch._C._current_graph_task_id()):
            self.release(id)

    def release_all(self) -> None:
        """Releases all parameters that no context holds, also those that had no gradient in this backward pass."""
        self._forget_passes()
        self._release_unused()

    def _forget_passes(self) -> None:
        """Takes no module to be at work, nor to have been when contexts began: forward passes have ended, or were
        broken off without a call of hooks."""
        self._at_work = [0] * len(self._own)
        self._contexts = [list(self._at_work) for _ in self._contexts]

    def _release_unused(self) -> None:
        for id in list(self._wholes.there):
            self.release(id)

    def renew_all(self) -> None:
        """Releases all parameters, whoever holds them, because their owners' values have changed, and gathers those
        anew that contexts hold."""
        self._forget_passes()
        for id in list(self._wholes.there):
            self._wholes.release(id)
        self._engine.invalidate_gathered_params()
        if self._contexts:
            self._gather_those_of_contexts()

    def end_pass(self) -> None:
        self.release_all()
        self._backward_of = [None] * len(self._users)
        self._visits.end_pass()
        self._uses = FirstUses()

    def _visit(self, number: int) -> None:
        """Gathers the parameters that a module needs now, and starts transfers for the next modules. In a context,
        where all are whole, it does nothing: a rank may make passes of its own there, and the order of visits must be
        the same on all ranks."""
        if self._contexts:
            return
        place = self._visits.add(number)
        if place is None:
            self._wholes.gather(self._own[number])
            return
        if not self._wholes.there.issuperset(self._own[number]):
            self._wholes.start(self._visits.transfer_at(place, self._transfer_bytes))
        self._wholes.gather(self._own[number])
        self._wholes.start(self._visits.transfer_ahead(place + 1, self._wholes.there, self._transfer_bytes))

    def _visit_in_backward(self, number: int, call: Call) -> None:
        for id in self._own[number]:
            self._backward_of[id] = torch._C._current_graph_task_id()
        if not self._engine.ignores_gradients():  # otherwise the user has started this backward pass
            self._calls[number].discard(call)
            self._skip_gradients_after(call)
        self._visit(number)

    def _skip_gradients_after(self, call: Call) -> None:
        """Tells the engine which gradients will not come because the backward pass has gone on. A rank that has them
        may wait for this one's part of their sum, and take part in no gather until then."""
        if self._contexts or call.used is None:
            return
        if after := self._uses.take_after(call.used):
            self._engine.skip_gradients(GRAPH, after)

    def _before_forward(self, number: int, *_: Any) -> None:
        self._at_work[number] += 1
        if torch.is_grad_enabled() and not is_in_backward():
            self._uses.note(self._own[number])
        self._visit(number)

    def _after_forward(self, number: int, _module: nn.Module, _arguments: Any, output: Any) -> None:
        has_backward = torch.is_grad_enabled()
        is_recomputed = is_in_backward()  # by a backward pass, which needs the parameters next
        outputs = [tensor for tensor in tensors_in(output) if tensor.layout in (torch.strided, torch.jagged)]
        memories = [memory_of(output) for output in outputs]
        is_transformed = None in memories  # by torch.func, which differentiates at once and takes no hooks
        # a parameter that the module returns, or a view of one, is read by the caller
        returned = {self._wholes.with_memory(memory) for memory in memories}
        if self._at_work[number] > 0:  # otherwise a hook before the engine's has raised an error
            self._at_work[number] -= 1
            for id in self._own[number]:
                is_read_soon = is_recomputed or is_transformed or id in returned
                if not (is_read_soon or (has_backward and self._visits.comes_soon(id, self._kept_bytes))):
                    self.release(id)
        if has_backward and not is_transformed:
            call = Call(None if is_recomputed else self._uses.count)
            self._before_backward(number, [one for one in outputs if one.requires_grad and not one.is_leaf], call)

    def _before_backward(self, number: int, outputs: list[Tensor], call: Call) -> None:
        # A change of a view in place leaves the view's own node out of backward, and that of its base in.
        bases = [output._base for output in outputs if output._base is not None]
        outputs += [base for base in bases if base.requires_grad and not base.is_leaf]
        if len(outputs) == 1:
            outputs[0].register_hook(lambda _: self._visit_in_backward(number, call))
        elif outputs:
            register_multi_grad_hook(outputs, lambda _: self._visit_in_backward(number, call), mode="any")
        self._calls[number].add(call)  # for as long as a hook holds it
        # A backward pass comes to a module that returned its input before the one that has made it, as it does where
        # the module does not return it.
        for output in outputs:
            let_last_be_first(output._backward_hooks)
