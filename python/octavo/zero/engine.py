# SPDX-License-Identifier: Apache-2.0
"""Training by ZeRO: ranks share out optimizer state, gradients and parameters."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from octavo import _C
from octavo._C import Plan, StatePaging
from octavo.alive import while_alive
from octavo.finite import all_finite
from octavo.handle import Handle
from octavo.parameters import exemption
from octavo.plan import as_plan
from octavo.rendezvous import Rendezvous, as_group, require_same_on_all_ranks, send_around
from octavo.zero import export, optimizer_state
from octavo.zero.compile_config import CompileConfig, compile_config
from octavo.zero.config import ZeroConfig
from octavo.zero.gathering import GRAPH, Gathering
from octavo.zero.parts import (
    OwnPart,
    memory_of,
    require_same,
    require_trainable,
    require_uncompiled,
    warn_of_rounding,
)

if TYPE_CHECKING:
    from octavo.zero.compiled import Contract, Edit, Schedule, Setting, ZeroCompiler


def initialize(
    model: nn.Module,
    optimizer: Optimizer,
    config: Mapping[str, Any],
    *,
    group: dist.ProcessGroup | None = None,
) -> ZeroEngine:
    """An engine that trains ``model`` on all ranks of ``group`` by ZeRO. Call it on all of them.

    >>> engine = octavo.initialize(model, torch.optim.AdamW(model.parameters()), {"zero_stage": 2, "plan": "int4+ef"})
    >>> for batch in batches:            # each rank has its own
    ...     loss = engine(**batch).loss
    ...     engine.backward(loss)
    ...     engine.step()

    ``model``: a plain module, on one device; rank 0's parameters and buffers become those of all. ``optimizer``: any
    that treats elements alike or each parameter's by themselves, without state; of each parameter it gets the part that
    this rank owns, flat. ``config``: the fields of ``ZeroConfig``. ValueError for what makes no sense or differs
    between ranks.
    """
    return ZeroEngine(model, optimizer, ZeroConfig.of(config), group)


class ZeroEngine:
    """What ``octavo.initialize`` makes. After an error of ``backward`` or ``step`` start again from a checkpoint, since
    ranks may differ and gradients be lost: ``backward``, ``step`` and checkpoints refuse to go on with RuntimeError
    where a backward pass has failed."""

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, config: ZeroConfig, group: dist.ProcessGroup | None = None
    ):
        group = as_group(group, "zero.initialize")
        if optimizer.state:
            raise ValueError("[zero.initialize] the optimizer has state already: give a new one")
        compiled = compile_config(config.compile)
        self.module, self.optimizer, self.config = model, optimizer, config
        self._group = group
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._ids = {parameter: id for id, parameter in enumerate(self._parameters.values())}
        require_trainable(self._parameters, optimizer)
        if config.zero_stage == 3:
            require_uncompiled(model)
        device_type = next(iter(self._parameters.values())).device.type
        setting = None if compiled is None else self._compilable(compiled, device_type)
        if group.size() > 1:
            warn_of_rounding(self._parameters)
        plan = as_plan(config.plan)
        is_exempt = exemption(config.exempt, self._parameters, "zero.initialize")
        exempt = {name: bool(is_exempt(name, p)) for name, p in self._parameters.items()}
        plan.require_rules_fit([name for name, is_exempt in exempt.items() if not is_exempt])
        self._engine = self._connect(plan, exempt)
        send_around([*model.parameters(), *model.buffers()], group)  # as DistributedDataParallel does
        self._mesh = DeviceMesh.from_group(group, device_type)
        self.parts: dict[nn.Parameter, OwnPart] = {
            parameter: self._share_out(name, exempt[name]) for name, parameter in self._parameters.items()
        }
        getattr(self._engine, f"register_graph_z{config.zero_stage}")(GRAPH, list(range(len(self.parts))))
        # graphs that compute what a model decides by its data differ between ranks; compiled ones come in between
        expected = [] if compiled is not None else list(reversed(range(len(self.parts))))
        self._engine.order_gradients(GRAPH, expected, compiled is None)
        if config.symmetric_memory and self._engine.why_no_symmetric_memory():
            warnings.warn(
                f"[zero.initialize] ranks use the network in place of symmetric_memory: "
                f"{self._engine.why_no_symmetric_memory()}",
                stacklevel=3,
            )
        for param_group in optimizer.param_groups:
            param_group["params"] = [self.parts[p].values for p in param_group["params"] if p in self.parts]
        self._micro_batches = 0
        self._has_gradients = False
        self._engine.ignore_gradients(True)
        for name, parameter in self._parameters.items():
            parameter.grad = None
            parameter.register_post_accumulate_grad_hook(partial(while_alive(self._reduce), name))
        transfer_bytes, kept_bytes = int(config.gather_mib * 2**20), int(config.reuse_mib * 2**20)
        self._gathering: Gathering | None = None
        if config.zero_stage == 3:
            self._gathering = Gathering(self._engine, self._ids, self._parameters, model, transfer_bytes, kept_bytes)
        self._engine.compressor.seed = config.seed
        self.handle = Handle(self._engine.compressor, self._parameters, model)
        self._memories = {parameter: memory_of(parameter) for parameter in self.parts}
        self._steps = 0
        self._forward: Callable[..., Any] = model
        self._compiler: ZeroCompiler | None = None
        self._failure: str | None = None  # of a backward pass
        if compiled is not None and setting is not None:
            self._compiler = self._make_compiler(compiled, setting, transfer_bytes)
            # each engine is another backend, and all engines of a model's class would share one limit of recompilations
            has_own_limit = "isolate_recompiles" in inspect.signature(torch.compile).parameters  # from torch 2.13 on
            own_limit = {"isolate_recompiles": True} if has_own_limit else {}
            backend = while_alive(self._compiler.compile)
            self._forward = torch.compile(model, backend=backend, dynamic=compiled.dynamic, **own_limit)

    # ---- a step

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        try:
            return self._forward(*arguments, **named)
        except BaseException:
            self._engine.give_up_pass()
            raise

    @property
    def is_last_micro_batch(self) -> bool:
        """Whether the next ``backward`` is the last one of a step."""
        return (self._micro_batches + 1) % self.config.accumulation_steps == 0

    def backward(self, loss: Tensor) -> None:
        """Adds up the gradients of this micro-batch, averaged over ranks and micro-batches, where they belong."""
        self._require_whole_passes("backward")
        if self._has_gradients:
            raise RuntimeError(
                "[zero.backward] the last micro-batch of a step has been there: call step() or drop_gradients() before "
                "the next one, or give octavo.initialize accumulation_steps"
            )
        _require_differentiable(loss)
        self._engine.start_backward(self.is_last_micro_batch)
        for parameter in self.parts:
            parameter.grad = None  # of a pass that was not this engine's
        self._engine.ignore_gradients(False)
        try:
            (loss / self.config.accumulation_steps).backward()
            if self._gathering is not None:
                self._gathering.end_pass()
            self._engine.end_backward(GRAPH)
        except BaseException as error:
            self.fail(error)
            self._engine.give_up_pass()
            raise
        finally:
            self._engine.ignore_gradients(True)
        self._micro_batches += 1
        self._has_gradients = self._micro_batches % self.config.accumulation_steps == 0

    @torch.no_grad()
    def step(self) -> Tensor | None:
        """The optimizer's step, once after the last micro-batch of one; otherwise nothing. Returns the norm of all
        gradients where they are clipped."""
        self._require_whole_passes("step")
        if not self._has_gradients:
            return None
        require_same(self.module, self._memories, self.optimizer, self.parts)
        if self._gathering is not None:
            self._gathering.release_all()  # also of passes that had no backward pass
        for part in self._reduced_parts():
            part.values.grad = part.gradient
        norm = None if self.config.clip_norm is None else self.clip_grad_norm_(self.config.clip_norm)
        self._has_gradients = False
        self.optimizer.step()
        for part in self.parts.values():
            part.values.grad = None
        torch.autograd.graph.increment_version(self.parts)  # graphs of before saw other values
        if self._gathering is None:
            self._engine.gather_updated()
        else:
            self._engine.invalidate_gathered_params()  # a pass before this step may have gathered what stays whole
        self._steps += 1
        if self._compiler is not None:
            self._compiler.begin_step(self._steps)
        return norm

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """After the last micro-batch of a step, in the place of ``torch.nn.utils.clip_grad_norm_``, which finds no
        gradients: they are in the ranks' parts. Returns their norm before, of all ranks, which call it together;
        ``clip_norm`` in the config does it in every step. RuntimeError where there are none."""
        if not self._has_gradients:
            raise RuntimeError("[zero.clip_grad_norm_] call it between the last backward() of a step and step()")
        gradients = self._reduced_gradients()
        squares = torch.nn.utils.get_total_norm(gradients).double().square()
        dist.all_reduce(squares, group=self._group)
        norm = squares.sqrt()
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factor)
        return norm

    def _reduced_parts(self) -> list[OwnPart]:
        """Of parameters that some rank had a gradient for in this step."""
        reduced = set(self._engine.reduced_params())
        return [part for parameter, part in self.parts.items() if self._ids[parameter] in reduced]

    def _reduced_gradients(self) -> list[Tensor]:
        return [part.gradient.to_local() for part in self._reduced_parts()]

    @torch.no_grad()
    def has_finite_gradients(self) -> bool:
        """After the last micro-batch of a step: whether all gradients are finite, of all ranks, which call it
        together. ``drop_gradients`` then takes the place of ``step``."""
        flag = all_finite(self._reduced_gradients()).to(torch.int32)
        dist.all_reduce(flag, dist.ReduceOp.MIN, group=self._group)
        return bool(flag)

    def drop_gradients(self) -> None:
        """In the place of ``step``, or between the micro-batches of one: those of this step count no longer, and the
        next micro-batch is a step's first. Call it on all ranks. What error feedback has sent stays sent."""
        self._require_whole_passes("drop_gradients")
        self._engine.drop_gradients()
        self._micro_batches -= self._micro_batches % self.config.accumulation_steps
        self._has_gradients = False

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Inside, all parameters are whole, on all ranks, which call it together: to read or save
        ``module.state_dict()``, or for passes without gradients that ranks make by themselves. In stages 1 and 2 they
        always are. What is written to them is lost where a rank has its part apart: in stage 3, and with ``gather``."""
        if self._gathering is not None:
            self._gathering.gather_all()
        try:
            yield
        finally:
            if self._gathering is not None:
                self._gathering.release_all()

    def _reduce(self, name: str, parameter: Tensor) -> None:
        """Of a parameter whose gradient is complete. None where a compiled graph has reduced it."""
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
        """A pass of the user's own, which ``set_compile_schedule`` can name. ``edit`` gets each graph."""
        self._of_compiled("register_compile_pass").register_pass(name, edit, contract)

    def set_compile_schedule(self, schedule: Schedule) -> None:
        """In place of the config's, before the first forward pass. ValueError where it breaks a contract."""
        self._of_compiled("set_compile_schedule").set_schedule(schedule)

    def _of_compiled(self, what: str) -> ZeroCompiler:
        if self._compiler is None:
            raise ValueError(f'[zero.{what}] the engine is not compiled: give "compile": True to octavo.initialize')
        return self._compiler

    def owned(self, part: OwnPart) -> tuple[int, int]:
        """The first element that this rank owns of a flat parameter, and how many."""
        return self._engine.owned(part.values.numel())

    # ---- checkpoints

    def whole_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """One after another, by name, those that need a gradient, as `whole` makes them. All ranks go through them
        together, to the end."""
        for name, parameter in self._parameters.items():
            yield name, self.whole(parameter)

    @torch.no_grad()
    def whole(self, tensor: Tensor) -> Tensor:
        """A parameter as its owners have it, whatever ``gather`` leaves out, on all ranks, which call it together; any
        other tensor of the model as it is."""
        is_there = self._gathering is None and self.config.gather is None
        if is_there or tensor not in self.parts:
            return tensor.detach()
        self.bring_back()
        return self.parts[tensor].gathered().view(tensor.shape)

    def export_safetensors(self, path: str | Path) -> None:
        """Writes ``module.state_dict()`` to one file that ``safetensors`` and ``transformers`` open, with parameters as
        their owners have them. All ranks call it; rank 0 writes, tensor by tensor. OSError on all ranks where it
        cannot. Between steps."""
        self._require_between_steps("export_safetensors")
        export.export(self, Path(path), self._group)

    def optimizer_state(self) -> optimizer_state.States:
        """This rank's part: by parameter's name and by key flat tensors, or what all ranks have alike."""
        return optimizer_state.own_states(self)

    def optimizer_options(self) -> list[dict[str, Any]]:
        """Of the optimizer's parameter groups."""
        return optimizer_state.options_of(self)

    def optimizer_bytes(self) -> int:
        """Of this rank's part, as the optimizer has it."""
        return optimizer_state.bytes_of(self)

    def load_optimizer_state(
        self,
        states: optimizer_state.States | Iterable[optimizer_state.States],
        options: list[dict[str, Any]],
    ) -> None:
        """Takes back ``optimizer_state`` and ``optimizer_options``: this rank's state, or, one after another and of any
        number of ranks, those of all. ValueError where they do not fit."""
        own = states if isinstance(states, Mapping) else optimizer_state.of_this_rank(self, states)
        optimizer_state.load_states(self, own, options)

    def save_checkpoint(self, directory: str | Path) -> None:
        """Writes parameters, buffers, the optimizer's state and what the plan remembers, each rank its part, by
        ``torch.distributed.checkpoint``, into a folder to which ``directory/latest`` points once all is written and on
        the disk; the checkpoint before is then removed. Buffers become rank 0's on all ranks; those that
        ``state_dict()`` leaves out are not saved. Between steps."""
        self._require_between_steps("save_checkpoint")
        self.bring_back()
        from octavo.zero import checkpoint  # and torch.distributed.checkpoint: not by `import octavo`

        checkpoint.save(self, Path(directory), self._group)

    def load_checkpoint(self, directory: str | Path) -> None:
        """Takes back what an engine of the same model and kind of optimizer has saved, on any number of ranks and of
        any stage: on as many ranks to the bit. ValueError for the checkpoint of another model or kind of optimizer;
        then nothing has changed. Where a file cannot be read on the way, the engine refuses to go on."""
        self._require_between_steps("load_checkpoint")
        self.bring_back()
        from octavo.zero import checkpoint  # and torch.distributed.checkpoint: not by `import octavo`

        checkpoint.load(self, Path(directory), self._group)
        self.take_own_parts()

    def take_own_parts(self) -> None:
        """After ``parts`` were changed outside of a step, what modules compute with follows. All ranks call it, between
        steps."""
        torch.autograd.graph.increment_version(self.parts)
        if self._gathering is None:
            self._engine.gather_updated()
        else:
            self._gathering.release_all()
            self._engine.invalidate_gathered_params()

    def fail(self, error: BaseException) -> None:
        """From now on the engine refuses to go on: what it has is in part that of before."""
        self._failure = f"{type(error).__name__}: {error}"

    def _require_whole_passes(self, what: str) -> None:
        if self._failure is not None:
            raise RuntimeError(
                f"[zero.{what}] this engine has ended with an error before, half way through what it did; start again "
                f"from a checkpoint, with a new model, optimizer and engine. It was {self._failure}"
            )

    def _require_between_steps(self, what: str) -> None:
        self._require_whole_passes(what)
        if self._micro_batches % self.config.accumulation_steps != 0:
            raise ValueError(
                f"[zero.{what}] {self._micro_batches % self.config.accumulation_steps} of "
                f"{self.config.accumulation_steps} micro-batches of a step have been added up: call it between steps"
            )

    def sent_bytes(self) -> int:
        """Bytes that this rank has sent to others: gradients and parameters."""
        return self._engine.sent_bytes()

    def bring_back(self) -> None:
        """Brings to the device what passes have sent to the host, ``optimizer.state`` and ``parts``, before they are
        looked at between a forward pass and its step. Checkpoints, the optimizer's ``state_dict`` and ``step`` do it by
        themselves."""
        self._engine.restore()

    # ---- set-up

    def _compilable(self, config: CompileConfig, device_type: str) -> Setting:
        """What graphs are made for. ValueError where they cannot be compiled, or have no such schedule."""
        from octavo.zero.compiled import Setting, require_compilable  # and all of Inductor: not by `import octavo`
        from octavo.zero.compiled.on_host import paging_optimizer

        setting = Setting(
            stage=self.config.zero_stage,
            backend=config.backend,
            device=device_type,
            paged_by=paging_optimizer(self.optimizer),
            has_parts_apart=self._has_parts_apart,
        )
        require_compilable(config, setting)
        return setting

    def _make_compiler(self, config: CompileConfig, setting: Setting, transfer_bytes: int) -> ZeroCompiler:
        from octavo.zero.compiled import ZeroCompiler
        from octavo.zero.compiled.on_host import OnHost

        on_host = OnHost(self._engine, {self._ids[p]: part.values for p, part in self.parts.items()}, self.optimizer)
        return ZeroCompiler(self._engine, self._ids, transfer_bytes, config, setting, on_host, self._group)

    @property
    def _has_parts_apart(self) -> bool:
        """Otherwise a rank's part of a parameter is in its place in the whole."""
        return self.config.zero_stage == 3 or self.config.gather is not None

    def _connect(self, plan: Plan, exempt: dict[str, bool]) -> _C.Engine:
        gather = None if self.config.gather is None else as_plan(self.config.gather)
        rendezvous = Rendezvous(self._group, "zero.initialize", self.config.timeout_s)
        require_same_on_all_ranks(
            rendezvous,
            self._group.rank(),
            {
                **self.config.shared(),
                "exempt parameters": [name for name, is_exempt in exempt.items() if is_exempt],
                "model": [(name, tuple(p.shape), str(p.dtype)) for name, p in self._parameters.items()],
            },
            "zero.initialize",
        )
        of_model = sum(p.numel() for p in self._parameters.values())
        elements = max(1, min(int(self.config.bucket_mib * 2**20) // 4, of_model))
        paging = StatePaging(self.config.is_paged, self.config.page_dir or "")
        return _C.Engine(
            rendezvous.connect(),
            elements,
            plan,
            gather,
            self.config.timeout_s,
            self.config.symmetric_memory,
            # a rank that waits for a gradient sends it after gathers that others make before
            rendezvous.connect() if self.config.zero_stage == 3 else None,
            paging,
        )

    def _share_out(self, name: str, exempt: bool) -> OwnPart:
        parameter = self._parameters[name]
        id = self._ids[parameter]
        if self.config.zero_stage == 3:  # memory of its own, which can be emptied: it may be a file's, or others'
            parameter.data = parameter.data.clone()
        whole = parameter.data
        first, count = self._engine.owned(whole.numel())
        values = whole.view(-1)[first : first + count]
        gradient = torch.zeros_like(values)
        values = values.clone() if self._has_parts_apart else values
        if self.config.zero_stage == 3:
            self._engine.register_z3_param(id, list(whole.shape), values, gradient, False, name, exempt)
        else:
            own_part = values if self._has_parts_apart else None
            self._engine.register_param(id, list(whole.shape), whole, gradient, first, name, exempt, own_part)
        return OwnPart.of(values, gradient, whole.numel(), self._mesh)


def _require_differentiable(loss: Tensor) -> None:
    """ValueError before anything has happened."""
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
        what = f"{tuple(loss.shape)}, requires_grad={loss.requires_grad}" if isinstance(loss, Tensor) else repr(loss)
        raise ValueError(
            f"[zero.backward] expected a loss of one element that the engine's forward pass has computed, with a "
            f"gradient, got {what}: reduce it, as by mean(), and compute it outside of torch.no_grad()"
        )
