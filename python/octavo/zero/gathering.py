# SPDX-License-Identifier: Apache-2.0
"""Stage 3 without ``torch.compile``: decides when parameters are whole."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.utils._pytree import tree_leaves

from octavo import _C
from octavo.hooks import OwnHook, remove_after, while_alive
from octavo.optim.base import not_compiled
from octavo.zero.first_uses import FirstUses

GRAPH = 0  # without torch.compile all parameters belong to one graph


class Gathering:
    """Makes parameters whole while a module uses them, in its forward and its backward pass. Between these uses their
    memory has no bytes. Views that autograd has saved are of the same memory, and are valid when it is filled again.

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
        self._wholes = [p.data for p in ids]  # without their counts of changes, which autograd compares
        self._storages = [whole.untyped_storage() for whole in self._wholes]
        self._bytes = [storage.nbytes() for storage in self._storages]
        self._id_of_storage = {storage._cdata: id for id, storage in enumerate(self._storages)}
        self._users: list[list[int]] = [[] for _ in ids]  # by parameter: the modules that have it
        self._backward_of: list[int | None] = [None] * len(ids)  # torch's number of the backward pass that needs each
        self._there = {id for id, count in enumerate(self._bytes) if count == 0}  # whole, or being gathered
        self._moving: set[int] = set()
        self._visits: list[int] = []  # the modules of this pass, in the order in which they needed their parameters
        self._last_visits: list[int] = []
        self._uses = FirstUses()  # since the last backward pass
        # lists by module; modules are numbers, too
        self._own: list[list[int]] = []  # the parameters of each
        self._at_work: list[int] = []  # how many forward passes each makes now
        self._awaited: list[int] = []  # how many of their backward passes are to come
        # for each open context (a call of `gather_all` without its `leave_all`): `_at_work` when it began
        self._contexts: list[list[int]] = []
        self._names = list(parameters)
        self._unresizable: set[int] = set()  # what numpy shares
        self._refusals = [
            f"[zero.gathering] {name} is not whole on rank {engine.compressor.rank} outside of its module's forward "
            f"and backward: read it in engine.gathered(), or call the module that has it"
            for name in self._names
        ]
        for id in range(len(self._wholes)):
            self._empty(id)
        handles = []
        for module in model.modules():
            own = [ids[p] for p in _parameters_used_by(module) if p in ids]
            if own:
                number = len(self._own)
                self._own.append(own)
                for id in own:
                    self._users[id].append(number)
                # before the user's own hooks, which may read parameters, as the hook of torch's old weight_norm does
                before, after = _own_hook(self._before_forward, number), _own_hook(self._after_forward, number)
                handles.append(module.register_forward_pre_hook(before, prepend=True))
                handles.append(module.register_forward_hook(after, always_call=True))
        self._at_work = [0] * len(self._own)
        self._awaited = [0] * len(self._own)
        # last, so that it runs before the model's own visit is noted
        handles.append(model.register_forward_pre_hook(_own_hook(self._before_pass), prepend=True))
        remove_after(self, handles)

    def _before_pass(self, *_: Any) -> None:
        if not self._contexts:  # the pass before had no backward pass
            self._visits.clear()
            self._awaited = [0] * len(self._own)

    def gather(self, ids: Iterable[int]) -> None:
        """Gathers these parameters, and returns when they are whole."""
        needed = list(ids)
        self._start(needed)
        for id in needed:
            if id in self._moving:
                self._engine.wait_allgather(GRAPH, id)
                self._moving.discard(id)

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
        before = list(self._moving)
        for ids in self._transfers():
            self._start(ids)
            self.gather(before)
            before = ids
        self.gather(before)

    def _transfers(self) -> Iterator[list[int]]:
        """Yields the parameters that are neither whole nor being gathered, by transfer."""
        together: list[int] = []
        needed_bytes = 0
        for id in range(len(self._wholes)):
            if id in self._there:
                continue
            together.append(id)
            needed_bytes += self._bytes[id]
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
            self._let_go(id)

    def release_after_gradient(self, id: int) -> None:
        """Releases a parameter that has its gradient, unless it may be needed again: it then stays whole until the end.
        A backward pass inside of that of its module, as reentrant checkpointing makes one for each segment, may be
        followed by others. And a rank that has left the parameter out of an earlier call of a module has its gradient
        before ranks that have not; what is whole must not depend on that."""
        is_last = not any(self._awaited[number] > 0 for number in self._users[id])
        if is_last and self._backward_of[id] in (None, torch._C._current_graph_task_id()):
            self.release(id)

    def _let_go(self, id: int) -> None:
        if id not in self._there or self._bytes[id] == 0:
            return
        self.gather([id])  # it may be under way for a module that did not come
        self._engine.give_back(id)
        self._empty(id)
        self._there.discard(id)

    def _empty(self, id: int) -> None:
        if self._bytes[id] == 0:
            return
        if self._storages[id].resizable():
            self._storages[id].resize_(0)
        elif id not in self._unresizable:
            self._unresizable.add(id)
            warnings.warn(
                f"[zero.gathering] {self._names[id]} keeps the memory of all of its elements from now on, because "
                f"numpy() has given it to an array: call .clone().numpy()",
                stacklevel=8,
            )
        _C.forbid_access(self._wholes[id], self._refusals[id])

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
        for id in list(self._there):
            self.release(id)

    def renew_all(self) -> None:
        """Releases all parameters, whoever holds them, because their owners' values have changed, and gathers those
        anew that contexts hold."""
        self._forget_passes()
        for id in list(self._there):
            self._let_go(id)
        self._engine.invalidate_gathered_params()
        if self._contexts:
            self._gather_those_of_contexts()

    def end_pass(self) -> None:
        self.release_all()
        self._backward_of = [None] * len(self._names)
        self._last_visits, self._visits = self._visits, []
        self._awaited = [0] * len(self._own)
        self._uses = FirstUses()

    def _start(self, ids: Iterable[int]) -> None:
        """Starts one transfer of those parameters that are neither whole nor being gathered."""
        needed = [id for id in ids if id not in self._there]
        if not needed:
            return
        try:
            for id in needed:
                _C.allow_access(self._wholes[id])
                if id not in self._unresizable:
                    self._storages[id].resize_(self._bytes[id])
            self._engine.gather_into(GRAPH, needed, [self._wholes[id] for id in needed])
        except BaseException:  # where there is no memory, what has not arrived may be gathered again
            for id in needed:
                if self._engine.is_gathered(id):
                    self._there.add(id)
                    continue
                with suppress(ValueError):  # of one whose transfer was lost on its way, and may still write to it
                    self._engine.give_back(id)
                    self._empty(id)
            raise
        self._there.update(needed)
        self._moving.update(needed)

    def _comes_soon(self, id: int) -> bool:
        """Whether a module needs the parameter again before the modules until then need more than ``kept_bytes`` of
        others."""
        place = len(self._visits)
        if self._last_visits[place - 1 : place] != self._visits[-1:]:
            return False
        between = {id}
        needed = self._bytes[id]
        for next_place in range(place, len(self._last_visits)):
            for other in self._own[self._last_visits[next_place]]:
                if other == id:
                    return True
                if other not in between:
                    between.add(other)
                    needed += self._bytes[other]
            if needed > self._kept_bytes:
                return False
        return False

    def _visit(self, number: int) -> None:
        """Gathers the parameters that a module needs now, and starts transfers for the next modules. In a context,
        where all are whole, it does nothing: a rank may make passes of its own there, and the order of visits must be
        the same on all ranks."""
        if self._contexts:
            return
        place = len(self._visits)
        self._visits.append(number)
        is_known = place < len(self._last_visits) and self._last_visits[place] == number
        if is_known and not self._there.issuperset(self._own[number]):
            self._start(self._of_a_transfer(place))
        self.gather(self._own[number])
        if is_known:
            self._start_ahead(place + 1)

    def _start_ahead(self, place: int) -> None:
        """Starts a transfer for the visits of the last pass that come next. It begins with the first visit from
        ``place`` on whose parameters are neither whole nor being gathered. Nothing is started where the visits before
        that one need the bytes of a transfer already."""
        there_bytes = 0
        for next_place in range(place, len(self._last_visits)):
            own = self._own[self._last_visits[next_place]]
            if not self._there.issuperset(own):
                self._start(self._of_a_transfer(next_place))
                return
            there_bytes += sum(self._bytes[id] for id in own)
            if there_bytes >= self._transfer_bytes:
                return

    def _of_a_transfer(self, place: int) -> Iterable[int]:
        together: dict[int, int] = {}  # the bytes of each parameter
        for number in self._last_visits[place:]:
            together.update((id, self._bytes[id]) for id in self._own[number])
            if sum(together.values()) >= self._transfer_bytes:
                break
        return together

    def _visit_in_backward(self, number: int) -> None:
        for id in self._own[number]:
            self._backward_of[id] = torch._C._current_graph_task_id()
        self._awaited[number] -= 1
        self._skip_gradients_after(number)
        self._visit(number)

    def _skip_gradients_after(self, number: int) -> None:
        """Tells the engine which gradients will not come because the backward pass has gone on. A rank that has them
        may wait for this one's part of their sum, and take part in no gather until then."""
        if self._contexts or self._engine.ignores_gradients():
            return
        if after := self._uses.take_after(number):
            self._engine.skip_gradients(GRAPH, after)

    def _before_forward(self, number: int, *_: Any) -> None:
        self._at_work[number] += 1
        if torch.is_grad_enabled() and not _is_in_backward():
            self._uses.begin(self._own[number])
        self._visit(number)

    def _after_forward(self, number: int, _module: nn.Module, _arguments: Any, output: Any) -> None:
        has_backward = torch.is_grad_enabled()
        is_recomputed = _is_in_backward()  # by a backward pass, which needs the parameters next
        if has_backward and not is_recomputed:
            self._uses.end(number)
        outputs = [tensor for tensor in _tensors_in(output) if tensor.layout in (torch.strided, torch.jagged)]
        memories = [_memory_of(output) for output in outputs]
        is_transformed = None in memories  # by torch.func, which differentiates at once and takes no hooks
        # a parameter that the module returns, or a view of one, is read by the caller
        returned = {self._id_of_storage.get(memory) for memory in memories}
        if self._at_work[number] > 0:  # otherwise a hook before the engine's has raised an error
            self._at_work[number] -= 1
            for id in self._own[number]:
                is_read_soon = is_recomputed or is_transformed or id in returned
                if not (is_read_soon or (has_backward and self._comes_soon(id))):
                    self.release(id)
        if has_backward and not is_transformed:
            self._before_backward(number, [one for one in outputs if one.requires_grad and not one.is_leaf])

    def _before_backward(self, number: int, outputs: list[Tensor]) -> None:
        # A change of a view in place leaves the view's own node out of backward, and that of its base in.
        bases = [output._base for output in outputs if output._base is not None]
        outputs += [base for base in bases if base.requires_grad and not base.is_leaf]
        if outputs:
            self._awaited[number] += 1
        if len(outputs) == 1:
            outputs[0].register_hook(lambda _: self._visit_in_backward(number))
            # A backward pass comes to a module that returned its input before the one that has made it, as it does
            # where the module does not return it.
            _let_last_be_first(outputs[0]._backward_hooks)
        elif outputs:
            register_multi_grad_hook(outputs, lambda _: self._visit_in_backward(number), mode="any")


def _let_last_be_first(hooks: dict[int, Any]) -> None:
    """Lets the hook that was added last be called before the others. torch calls them in the order of insertion."""
    if len(hooks) > 1:
        last = hooks.popitem()
        others = list(hooks.items())
        hooks.clear()
        hooks.update([last, *others])


def _is_in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _own_hook(method: Callable[..., None], *given: Any) -> OwnHook:
    """Returns the hook of a module that calls ``method``, unless Dynamo traces the module, as long as the method's
    object is alive."""
    from torch._dynamo.eval_frame import skip_code  # takes a second, which other uses of this file need not wait for

    call = not_compiled(while_alive(method))

    def hook(*arguments: Any) -> None:
        if not torch.compiler.is_compiling():  # first, since Dynamo does not see through a weak reference
            call(*given, *arguments)

    # Where Dynamo runs a module without a graph, it would compile this function by itself, which then finds itself
    # being compiled.
    skip_code(hook.__code__)
    return OwnHook(hook)


def _memory_of(tensor: Tensor) -> int | None:
    """Returns what identifies the memory of a tensor; None for one that torch.func has made, which has none."""
    if tensor.layout == torch.jagged:  # nested: a tensor of all values, with offsets
        tensor = tensor.values()
    try:
        return tensor.untyped_storage()._cdata
    except NotImplementedError:
        return None


def _tensors_in(output: object) -> Iterator[Tensor]:
    """Yields the tensors of what a module returns, which may be in containers and dataclasses."""
    for leaf in [output] if isinstance(output, Tensor) else tree_leaves(output):
        if isinstance(leaf, Tensor):
            yield leaf
        elif is_dataclass(leaf) and not isinstance(leaf, type):
            yield from _tensors_in([getattr(leaf, field.name, None) for field in fields(leaf)])


def _parameters_used_by(module: nn.Module) -> Iterator[nn.Parameter]:
    """Yields the parameters of a module, and those of children that it reads without calling them: lists of parameters,
    and the last layer of a torch.nn.MultiheadAttention."""
    yield from module.parameters(recurse=False)
    for child in module.children():
        if isinstance(child, nn.ParameterList | nn.ParameterDict):
            yield from child.parameters()
        elif isinstance(child, nn.modules.linear.NonDynamicallyQuantizableLinear):
            yield from child.parameters(recurse=False)
