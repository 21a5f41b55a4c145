# SPDX-License-Identifier: Apache-2.0
"""Training by ZeRO: ranks share out optimizer state, gradients and parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from octavo.finite import all_finite
from octavo.hooks import remove_after, while_alive
from octavo.optim.base import not_compiled
from octavo.optim.clipping import clip_factor, require_max_norm, total_norm
from octavo.parameters import exempt_by_name
from octavo.plain_model import require_plain_model
from octavo.rendezvous import as_group, broadcast_from_rank_0, require_backend
from octavo.zero import explained, export, optimizer_state, set_up
from octavo.zero.checks import (
    memory_of,
    require_gatherable,
    require_same,
    require_trainable,
    require_uncompiled,
    warn_of_rounding,
)
from octavo.zero.compile_config import CompileConfig, compile_config
from octavo.zero.config import ZeroConfig
from octavo.zero.gathering import GRAPH, Gathering
from octavo.zero.handle import ZeroHandle
from octavo.zero.parts import OwnPart

if TYPE_CHECKING:
    from octavo.zero.compiled import Contract, Edit, Schedule, Setting, ZeroCompiler


def initialize(
    model: nn.Module,
    optimizer: Optimizer,
    config: Mapping[str, Any],
    *,
    group: dist.ProcessGroup | None = None,
) -> ZeroEngine:
    """Returns an engine that trains ``model`` on all ranks of ``group`` by ZeRO. Call it on all of them.

    >>> engine = octavo.initialize(model, torch.optim.AdamW(model.parameters()), {"zero_stage": 2, "plan": "int4+ef"})
    >>> for batch in batches:            # each rank has its own
    ...     loss = engine(**batch).loss
    ...     engine.backward(loss)
    ...     engine.step()

    - ``model``: a plain module on one device. The parameters and buffers of rank 0 become those of all ranks.
    - ``optimizer``: one that treats all elements alike, or all elements of a parameter. It gets the part of each
      parameter that this rank owns, flat, and that part of the state that it has; rank 0's state becomes that of all.
    - ``config``: the fields of ``ZeroConfig``, such as ``zero_stage`` (1, 2 or 3) and ``plan``.
    - ``group``: the ranks; None: all ranks.

    Raises ValueError for arguments that make no sense or differ between ranks.
    """
    for name, value, wanted in (("model", model, nn.Module), ("optimizer", optimizer, Optimizer)):
        if not isinstance(value, wanted):
            raise TypeError(
                f"[zero.initialize] expected {name} as a torch {wanted.__name__}, got {type(value).__name__}"
            )
    return ZeroEngine(model, optimizer, ZeroConfig.of(config), group)


class ZeroEngine:
    """The engine that ``octavo.initialize`` returns. Calling it is a forward pass of the model.

    After an error in a backward pass or in the optimizer's step start again from a checkpoint, because ranks may differ
    and gradients may be lost: ``backward``, ``step`` and checkpoints raise RuntimeError from then on.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, config: ZeroConfig, group: dist.ProcessGroup | None = None
    ):
        group = as_group(group, "zero.initialize")
        compiled = compile_config(config.compile)
        self.module, self.optimizer, self.config = model, optimizer, config
        self._group = group
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._ids = {parameter: id for id, parameter in enumerate(self._parameters.values())}
        require_plain_model(model, "zero.initialize")
        require_trainable(self._parameters, optimizer)
        states = optimizer_state.whole_states(optimizer, self._parameters)
        if config.zero_stage == 3:
            require_uncompiled(model)
            require_gatherable(model)
        device_type = next(iter(self._parameters.values())).device.type
        require_backend(group, torch.device(device_type), "zero.initialize")
        setting = None if compiled is None else set_up.compilable(config, compiled, device_type, optimizer)
        if group.size() > 1:
            warn_of_rounding(self._parameters)
        exempt = exempt_by_name(config.exempt, self._parameters, "zero.initialize")
        self._engine = set_up.connect(config, group, self._parameters, exempt, optimizer, states)
        kept = [value for state in states.values() for value in state.values() if isinstance(value, Tensor)]
        broadcast_from_rank_0([*model.parameters(), *model.buffers(), *kept], group)  # as DistributedDataParallel does
        mesh = DeviceMesh.from_group(group, device_type)
        self.parts: dict[nn.Parameter, OwnPart] = set_up.share_out(self._engine, config, self._parameters, exempt, mesh)
        set_up.register_graph(self._engine, config, len(self.parts), is_compiled=compiled is not None)
        set_up.give_parts(optimizer, self.parts)
        if states:
            self.load_optimizer_state([states], self.optimizer_options())
        del states, kept  # all of each parameter's, on every rank
        self._micro_batches, self._steps = 0, 0
        self._renewals = 0  # how often `take_own_parts` was called
        self._has_gradients = False
        self._failure: str | None = None  # the error that a backward pass, a step or a load has ended with
        self._take_gradients()
        transfer_bytes, kept_bytes = int(config.gather_mib * 2**20), int(config.reuse_mib * 2**20)
        self._gathering: Gathering | None = None
        if config.zero_stage == 3:
            self._gathering = Gathering(self._engine, self._ids, self._parameters, model, transfer_bytes, kept_bytes)
        self.handle = ZeroHandle(self, self._engine.compressor, self._parameters, model)
        self._memories = {parameter: memory_of(parameter) for parameter in self.parts}
        self._forward: Callable[..., Any] = model
        self._compiler: ZeroCompiler | None = None
        if compiled is not None and setting is not None:
            self._compile(compiled, setting, transfer_bytes)
        if config.zero_stage < 3 and config.gather is not None:
            self._engine.gather_updated()  # the first pass, too, is made with parameters as they are sent

    def _take_gradients(self) -> None:
        """From now on complete gradients go to the C++ engine."""
        self._engine.ignore_gradients(True)
        handles = []
        for name, parameter in self._parameters.items():
            parameter.grad = None
            hook = partial(while_alive(self._reduce), name)
            handles.append(parameter.register_post_accumulate_grad_hook(hook))
        remove_after(self, handles)

    def _compile(self, compiled: CompileConfig, setting: Setting, transfer_bytes: int) -> None:
        from octavo.zero.compiled import ZeroCompiler
        from octavo.zero.compiled.on_host import OnHost

        values = {self._ids[parameter]: part.values for parameter, part in self.parts.items()}
        on_host = OnHost(self._engine, values, self.optimizer)
        self._compiler = ZeroCompiler(self._engine, self._ids, transfer_bytes, compiled, setting, on_host, self._group)
        # Each engine has a backend of its own, and all engines of a model's class would share one limit of
        # recompilations.
        has_own_limit = "isolate_recompiles" in inspect.signature(torch.compile).parameters  # since torch 2.13
        own_limit = {"isolate_recompiles": True} if has_own_limit else {}
        backend = while_alive(self._compiler.compile)
        self._forward = torch.compile(self.module, backend=backend, dynamic=compiled.dynamic, **own_limit)

    def __reduce__(self) -> NoReturn:
        raise TypeError("[zero.initialize] an engine has connections, which no copy can have: call save_checkpoint()")

    # ---- a step

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        # In stage 3 a parameter is empty between its uses: where a caller has compiled this call, Dynamo must not trace
        # what it finds.
        run = self._run_untraced if self.config.zero_stage == 3 else self._run
        return run(*arguments, **named)

    def _run(self, *arguments: Any, **named: Any) -> Any:
        try:
            return self._forward(*arguments, **named)
        except BaseException as error:
            self._engine.give_up_pass()
            self._raise_explained(explained.in_forward, error)
            raise

    _run_untraced = not_compiled(_run)

    def _raise_explained(self, explain: Callable[..., RuntimeError | None], error: BaseException) -> None:
        explanation = explain(error, is_compiled=self._compiler is not None, is_gathered=self._gathering is not None)
        if explanation is not None:
            raise explanation from error

    @property
    def is_last_micro_batch(self) -> bool:
        """Whether the next ``backward`` is the last one of a step."""
        return (self._micro_batches + 1) % self.config.accumulation_steps == 0

    def backward(self, loss: Tensor) -> None:
        """Makes the backward pass of this micro-batch's ``loss``, and adds its gradients, averaged over ranks and
        micro-batches, to the parts that ranks own. Raises ValueError for a loss that cannot be differentiated,
        RuntimeError where ``step`` is due."""
        self._require_whole_passes("backward")
        if self._has_gradients:
            raise RuntimeError(
                "[zero.backward] the last micro-batch of this step was already processed: call step() or "
                "drop_gradients() before the next one, or give octavo.initialize accumulation_steps"
            )
        _require_differentiable(loss)
        self._engine.start_backward(self.is_last_micro_batch)
        for parameter in self.parts:
            parameter.grad = None  # what a pass that was not this engine's has left
        self._engine.ignore_gradients(False)
        try:
            (loss / self.config.accumulation_steps).backward()
            if self._gathering is not None:
                self._gathering.end_pass()
            self._engine.end_backward(GRAPH)
        except BaseException as error:
            self.fail(error)
            self._engine.give_up_pass()
            self._raise_explained(explained.in_backward, error)
            raise
        finally:
            self._engine.ignore_gradients(True)
        self._micro_batches += 1
        self._has_gradients = self._micro_batches % self.config.accumulation_steps == 0

    @torch.no_grad()
    def step(self) -> Tensor | None:
        """Makes the optimizer's step after the last micro-batch of a step; otherwise does nothing. Returns the norm of
        all gradients where they are clipped, otherwise None."""
        self._require_whole_passes("step")
        if not self._has_gradients:
            return None
        require_same(self.module, self._memories, self.optimizer, self.parts)
        if self._gathering is not None:
            self._gathering.release_all()  # also what forward passes without a backward pass have gathered
        for part in self._reduced_parts():
            part.values.grad = part.gradient
        norm = None if self.config.clip_norm is None else self.clip_grad_norm_(self.config.clip_norm)
        self._has_gradients = False
        try:
            self.optimizer.step()
            for part in self.parts.values():
                part.values.grad = None
            self.take_own_parts()
        except FloatingPointError:  # of an optimizer's nonfinite="raise", on all ranks: nothing has changed
            raise
        except BaseException as error:
            self.fail(error)
            explanation = explained.in_step(error, self.optimizer)
            if explanation is not None:
                raise explanation from error
            raise
        self._steps += 1
        if self._compiler is not None:
            self._compiler.begin_step(self._steps)
        return norm

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Clips the norm of all gradients to ``max_norm``. Returns the norm that they had. All ranks call it together,
        after the last micro-batch of a step. ``clip_norm`` in the config does it in every step. Gradients whose norm is
        not finite stay as they are.

        It takes the place of ``torch.nn.utils.clip_grad_norm_``, which finds no gradients: they are in the ranks'
        parts. Raises RuntimeError where there are no gradients, ValueError for a norm below 0.
        """
        require_max_norm(max_norm, "zero.clip_grad_norm_")
        if not self._has_gradients:
            raise RuntimeError("[zero.clip_grad_norm_] call it between the last backward() of a step and step()")
        gradients = self._reduced_gradients()
        squares = total_norm(gradients).double().square()
        self._all_reduce(squares, dist.ReduceOp.SUM, "clip_grad_norm_")
        norm = squares.sqrt()
        if norm.isfinite():
            factor = clip_factor(norm, max_norm)
            for gradient in gradients:
                gradient.mul_(factor)
            self.handle.scaled_by(factor.item())
        return norm

    def _reduced_parts(self) -> list[OwnPart]:
        """Returns the parts of the parameters for which some rank had a gradient in this step."""
        reduced = set(self._engine.reduced_params())
        return [part for parameter, part in self.parts.items() if self._ids[parameter] in reduced]

    def _reduced_gradients(self) -> list[Tensor]:
        return [part.gradient.to_local() for part in self._reduced_parts()]

    @torch.no_grad()
    def has_finite_gradients(self) -> bool:
        """Whether all gradients of all ranks are finite. All ranks call it together, after the last micro-batch of a
        step. Where it is False, call ``drop_gradients`` in the place of ``step``."""
        flag = all_finite(self._reduced_gradients()).to(torch.int32)
        self._all_reduce(flag, dist.ReduceOp.MIN, "has_finite_gradients")
        return bool(flag)

    def _all_reduce(self, value: Tensor, by: dist.ReduceOp.RedOpType, what: str) -> None:
        """Reduces one number over the ranks, in place. Waits no longer than the engine does elsewhere: the process
        group has a timeout of its own. After an error the engine refuses to go on."""
        try:
            dist.all_reduce(value, by, group=self._group, async_op=True).wait(timedelta(seconds=self.config.timeout_s))
        except RuntimeError as error:
            self.fail(error)
            rebuild = "the process group and the engine must be rebuilt"
            if "timed out" in str(error).lower():
                late = f"another rank did not answer within {self.config.timeout_s:g} s"
                raise TimeoutError(f"[zero.{what}] rank {self._group.rank()}: {late}; {rebuild}") from error
            raise RuntimeError(f"[zero.{what}] another rank was lost ({error}); {rebuild}") from error

    def drop_gradients(self) -> None:
        """Drops the gradients of this step, in the place of ``step`` or between the micro-batches of a step. The next
        micro-batch is then the first of a step. Call it on all ranks. What error feedback remembers is again what it
        was before; where several micro-batches were sent, as in stages 2 and 3, it is dropped."""
        self._require_whole_passes("drop_gradients")
        if not self._has_gradients and self._micro_batches % self.config.accumulation_steps == 0:
            return
        self._engine.drop_gradients()
        self._micro_batches -= self._micro_batches % self.config.accumulation_steps
        self._has_gradients = False

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """A context in which all parameters are whole, on all ranks, which call it together. It is for reading or
        saving ``module.state_dict()``, and for passes without gradients that ranks make by themselves.

        In stages 1 and 2 parameters are always whole. Where a rank has its part in other memory, in stage 3 and with
        ``gather``, what is written to them is lost, and RuntimeError is raised at the end of the context: load weights
        before ``octavo.initialize``, and checkpoints by ``load_checkpoint``.
        """
        if self._gathering is not None:
            self._gathering.gather_all()
        before = self._changes()
        try:
            yield
        finally:
            changed = [name for name, changes in self._changes().items() if changes != before[name]]
            if self._gathering is not None:
                self._gathering.leave_all()
        if changed and set_up.has_parts_apart(self.config):
            raise RuntimeError(
                f"[zero.gathered] {changed[0]}{f' and {len(changed) - 1} others' if changed[1:] else ''} changed in "
                f"engine.gathered(), and this change is lost, because the ranks keep their parts in other memory: load "
                f"weights before octavo.initialize, and a checkpoint by engine.load_checkpoint"
            )

    def _changes(self) -> dict[str, int]:
        """Returns how often each parameter was written to, but for what the engine did."""
        return {name: parameter._version - self._renewals for name, parameter in self._parameters.items()}

    def _reduce(self, name: str, parameter: Tensor) -> None:
        """Hands over the gradient of a parameter, once backward has it. There is none where a compiled graph has
        reduced it."""
        gradient, parameter.grad = parameter.grad, None
        if self._engine.ignores_gradients():
            raise RuntimeError(
                f"[zero.backward] a backward pass has reached {name}, and it is not one of this parameter's engine: "
                f"call engine.backward(loss) in place of loss.backward(); where the loss is another engine's, let this "
                f"model need no gradient meanwhile, by requires_grad_(False)"
            )
        if gradient is None:
            return
        self._engine.take_grad(gradient, GRAPH, self._ids[parameter])
        if self._gathering is not None:
            self._gathering.release(self._ids[parameter])

    def register_compile_pass(self, name: str, edit: Edit, contract: Contract) -> None:
        """Registers a pass of the user's own, which ``set_compile_schedule`` can then name. ``edit`` is called with
        each graph."""
        self._of_compiled("register_compile_pass").register_pass(name, edit, contract)

    def set_compile_schedule(self, schedule: Schedule) -> None:
        """Replaces the schedule of the config. Call it on all ranks, with the same schedule, before the first forward
        pass. Raises ValueError where the schedule breaks a contract; the first ``step()`` raises it where ranks have
        other schedules."""
        self._of_compiled("set_compile_schedule").set_schedule(schedule)

    def _of_compiled(self, what: str) -> ZeroCompiler:
        if self._compiler is None:
            raise ValueError(f'[zero.{what}] the engine is not compiled: give "compile": True to octavo.initialize')
        return self._compiler

    def owned(self, part: OwnPart) -> tuple[int, int]:
        """Returns the first element of the flat parameter that this rank owns, and the number of elements that it
        owns."""
        return self._engine.owned(part.values.numel())

    # ---- checkpoints

    def whole_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yields, one after another, the names of the parameters that need a gradient, with the whole of each as
        `whole` makes it. All ranks go through them together, to the end."""
        for name, parameter in self._parameters.items():
            yield name, self.whole(parameter)

    @torch.no_grad()
    def whole(self, tensor: Tensor) -> Tensor:
        """Returns a whole parameter as its owners have it, without what ``gather`` leaves out, on all ranks, which call
        it together; any other tensor of the model as it is."""
        is_there = self._gathering is None and self.config.gather is None
        if is_there or tensor not in self.parts:
            return tensor.detach()
        self.bring_back()
        return self.parts[tensor].gathered().view(tensor.shape)

    def export_safetensors(self, path: str | Path) -> None:
        """Writes ``module.state_dict()`` to the file ``path``, which ``safetensors`` and ``transformers`` open, with
        parameters as their owners have them. All ranks call it, between steps. Rank 0 writes, tensor by tensor. Raises
        OSError on all ranks where it cannot."""
        self._require_between_steps("export_safetensors")
        export.export(self, _path("export_safetensors", path), self._group)

    def optimizer_state(self) -> optimizer_state.States:
        """Returns this rank's part of the optimizer's state: by the parameter's name and the state's key, a flat
        tensor, or a value that is equal on all ranks."""
        return optimizer_state.own_states(self)

    def optimizer_options(self) -> list[dict[str, Any]]:
        """Returns the options of the optimizer's parameter groups."""
        return optimizer_state.options_of(self.optimizer)

    def optimizer_bytes(self) -> int:
        """Returns the bytes of this rank's part of the optimizer's state, in the optimizer's own format."""
        return optimizer_state.bytes_of(self)

    def load_optimizer_state(
        self,
        states: optimizer_state.States | Iterable[optimizer_state.States],
        options: list[dict[str, Any]],
    ) -> None:
        """Restores what ``optimizer_state`` and ``optimizer_options`` returned. ``states``: this rank's state, or the
        states of all ranks of any world, in their order. Raises ValueError where they do not fit."""
        self.bring_back()
        own = states if isinstance(states, Mapping) else optimizer_state.of_this_rank(self, states)
        optimizer_state.load_states(self, own, options)

    def save_checkpoint(self, directory: str | Path) -> None:
        """Writes parameters, buffers, the optimizer's state and what the plan remembers, by
        ``torch.distributed.checkpoint``; each rank writes its part. All ranks call it, between steps.

        They are written to a folder, to which ``directory/latest`` points once all is written and on the disk. The
        checkpoint before is then removed. On all ranks buffers become those of rank 0; buffers that ``state_dict()``
        leaves out are not saved. Where a rank cannot write, all ranks raise OSError or RuntimeError, which names it.
        """
        self._require_between_steps("save_checkpoint")
        self.bring_back()
        from octavo.zero import checkpoint  # imports torch.distributed.checkpoint, which is slow

        checkpoint.save(self, _path("save_checkpoint", directory), self._group)

    def load_checkpoint(self, directory: str | Path) -> None:
        """Restores what an engine of the same model and kind of optimizer has saved, on any number of ranks and with
        any stage; on the same number of ranks to the bit. All ranks call it, between steps.

        Raises ValueError for the checkpoint of another model or kind of optimizer, and FileNotFoundError where there is
        none; nothing has changed then. Where a rank alone cannot read it, all ranks raise OSError or RuntimeError,
        which names that rank. Where this happens on the way, the engine refuses to go on.
        """
        self._require_between_steps("load_checkpoint")
        self.bring_back()
        from octavo.zero import checkpoint  # imports torch.distributed.checkpoint, which is slow

        checkpoint.load(self, _path("load_checkpoint", directory), self._group)
        self.take_own_parts()

    def take_own_parts(self) -> None:
        """Updates what modules compute with after ``parts`` were changed, by a step or outside of one. All ranks call
        it, between passes."""
        torch.autograd.graph.increment_version(self.parts)  # graphs made before have seen other values
        self._renewals += 1
        if self._gathering is None:
            self._engine.gather_updated()
        else:
            self._gathering.renew_all(self._engine.invalidate_gathered_params)

    def fail(self, error: BaseException) -> None:
        """Makes the engine refuse to go on from now on, because ``error`` has left some of its values changed and
        others not."""
        self._failure = f"{type(error).__name__}: {error}"

    def _require_whole_passes(self, what: str) -> None:
        if self._failure is not None:
            raise RuntimeError(
                f"[zero.{what}] this engine has ended with an error before, half way through what it did; start again "
                f"from a checkpoint, with a new model, optimizer and engine. It was {self._failure}"
            )

    def _require_between_steps(self, what: str) -> None:
        self._require_whole_passes(what)
        if self._has_gradients:
            raise ValueError(
                f"[zero.{what}] backward() has made the gradients of a step that step() has not made: call step() or "
                f"drop_gradients() first"
            )
        if self._micro_batches % self.config.accumulation_steps != 0:
            raise ValueError(
                f"[zero.{what}] {self._micro_batches % self.config.accumulation_steps} of "
                f"{self.config.accumulation_steps} micro-batches of a step have been added up: call it between steps"
            )

    def sent_bytes(self) -> int:
        """Returns the bytes that this rank has sent to others, of gradients and parameters."""
        return self._engine.sent_bytes()

    def bring_back(self) -> None:
        """Brings to the device what passes have sent to the host. Call it before ``optimizer.state`` and ``parts`` are
        looked at between a forward pass and its step. Checkpoints, and the optimizer's ``state_dict`` and ``step``, do
        it by themselves."""
        self._engine.restore()


def _path(function: str, path: Any) -> Path:
    try:
        return Path(path)
    except TypeError:
        raise TypeError(f"[zero.{function}] expected a path, got {path!r}") from None


def _require_differentiable(loss: Tensor) -> None:
    """Raises ValueError for a loss that cannot be differentiated, before anything has happened."""
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
        what = f"{tuple(loss.shape)}, requires_grad={loss.requires_grad}" if isinstance(loss, Tensor) else repr(loss)
        raise ValueError(
            f"[zero.backward] expected a loss of one element that the engine's forward pass has computed, with a "
            f"gradient, got {what}: reduce it, as by mean(), and compute it outside of torch.no_grad()"
        )
