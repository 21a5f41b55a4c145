# SPDX-License-Identifier: Apache-2.0
"""Training by ZeRO: ranks share out optimizer state, gradients and parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from octavo.optim.base import not_compiled, unwrapped
from octavo.optim.clipping import require_max_norm
from octavo.optim.fused import FusedOptimizer
from octavo.optim.nonfinite import NothingChanged
from octavo.parameters import exempt_by_name, plain_name
from octavo.plain_model import remember_engine
from octavo.rendezvous import Rendezvous, as_group, require_backend
from octavo.zero import compilation, explained, export, optimizer_state, set_up
from octavo.zero.always_whole import AlwaysWhole
from octavo.zero.checks import (
    as_path,
    memory_of,
    require_differentiable,
    require_same,
    require_shareable,
    warn_of_rounding,
)
from octavo.zero.compile_config import compile_config
from octavo.zero.config import ZeroConfig
from octavo.zero.gathering import Gathering
from octavo.zero.gradients import Gradients
from octavo.zero.handle import ZeroHandle
from octavo.zero.parts import OwnPart
from octavo.zero.peers import Peers
from octavo.zero.progress import Progress
from octavo.zero.whole_parameters import GRAPH
from octavo.zero.writes import Writes

if TYPE_CHECKING:
    from octavo.zero.compiled import Contract, Edit, Schedule, ZeroCompiler


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

    After an error in a backward pass, in the optimizer's step or in what a compile schedule does after it, start again
    from a checkpoint, because ranks may differ and gradients may be lost: ``backward``, ``step`` and checkpoints raise
    RuntimeError from then on.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, config: ZeroConfig, group: dist.ProcessGroup | None = None
    ):
        group = as_group(group, "zero.initialize")
        compiled = compile_config(config.compile)
        self.module, self.optimizer, self.config = model, optimizer, config
        self._parameters = {plain_name(name): p for name, p in model.named_parameters() if p.requires_grad}
        require_shareable(model, self._parameters, optimizer, config)
        states = optimizer_state.whole_states(optimizer, self._parameters)
        device_type = next(iter(self._parameters.values())).device.type
        require_backend(group, torch.device(device_type), "zero.initialize")
        setting = None if compiled is None else compilation.compilable(config, compiled, device_type, optimizer)
        if group.size() > 1:
            warn_of_rounding(self._parameters)
        exempt = exempt_by_name(config.exempt, self._parameters, "zero.initialize")
        rendezvous = Rendezvous(group, "zero.initialize", config.timeout_s)
        self._engine = set_up.connect(config, group, rendezvous, model, self._parameters, exempt, optimizer, states)
        self._progress = Progress(config.accumulation_steps)
        self._peers = Peers(group, rendezvous, config.timeout_s, self._progress.fail)
        set_up.broadcast_start_values(model, states, self._peers)
        # torch treats meshes with equal ranks and names as one mesh. Without a name of its own, this one would get the
        # group of an earlier one.
        mesh = DeviceMesh.from_group(group, device_type, mesh_dim_names=(group.group_name,))
        remember_engine(self, self._parameters.values())
        self.parts: dict[nn.Parameter, OwnPart] = set_up.share_out(self._engine, config, self._parameters, exempt, mesh)
        set_up.register_graph(self._engine, config, len(self.parts), is_compiled=compiled is not None)
        set_up.give_parts(optimizer, self.parts)
        if isinstance(own := unwrapped(optimizer), FusedOptimizer):
            own.remember_engine(self)
        if states:
            self.load_optimizer_state([states], self.optimizer_options())
        del states  # frees them: here every rank holds the whole states of all parameters
        transfer_bytes, kept_bytes = int(config.gather_mib * 2**20), int(config.reuse_mib * 2**20)
        self._gathering: Gathering | AlwaysWhole = AlwaysWhole(self._engine)
        if config.zero_stage == 3:
            self._gathering = Gathering(self._engine, self._parameters, model, transfer_bytes, kept_bytes)
        self._gradients = Gradients(self._engine, self._parameters, self.parts, self._gathering, self._peers)
        self.handle = ZeroHandle(self, self._engine.compressor, self._parameters, model)
        self._memories = {parameter: memory_of(parameter) for parameter in self.parts}
        self._writes = Writes(self._parameters)
        self._forward: Callable[..., Any] = model
        self._compiler: ZeroCompiler | None = None
        if compiled is not None and setting is not None:
            self._forward, self._compiler = compilation.compiled_model(
                model, self._engine, self.parts, transfer_bytes, compiled, setting, optimizer, self._peers
            )
        if config.zero_stage < 3 and config.gather is not None:
            self._engine.gather_updated()  # the first pass, too, is made with parameters as they are sent

    def __reduce__(self) -> NoReturn:
        raise TypeError("[zero.initialize] an engine has connections, so it cannot be copied: call save_checkpoint()")

    def train(self, mode: bool = True) -> ZeroEngine:
        """Sets the module's mode, as ``module.train(mode)`` does. Returns the engine."""
        self.module.train(mode)
        return self

    def eval(self) -> ZeroEngine:
        """Sets the module's mode, as ``module.eval()`` does. Returns the engine."""
        return self.train(False)

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
        explanation = explain(error, is_compiled=self._compiler is not None, is_gathered=self.config.zero_stage == 3)
        if explanation is not None:
            raise explanation from error

    @property
    def is_last_micro_batch(self) -> bool:
        """Whether the next ``backward`` is the last one of a step."""
        return self._progress.is_last_micro_batch

    def backward(self, loss: Tensor) -> None:
        """Makes the backward pass of this micro-batch's ``loss``, and adds its gradients, averaged over ranks and
        micro-batches, to the parts that ranks own. Raises ValueError for a loss that cannot be differentiated,
        RuntimeError where ``step`` is due."""
        self._progress.require_next_micro_batch()
        require_differentiable(loss)
        try:
            self._engine.start_backward(self.is_last_micro_batch)
        except (RuntimeError, TimeoutError) as error:  # another rank was lost: only now is the pass before known to all
            self.fail(error)
            raise
        for parameter in self.parts:
            parameter.grad = None  # what a pass that was not this engine's has left
        self._engine.ignore_gradients(False)
        try:
            # torch's loss.backward() works under no_grad() and in inference mode, too
            with torch.inference_mode(False) if torch.is_inference_mode_enabled() else torch.enable_grad():
                (loss / self.config.accumulation_steps).backward()
            self._gathering.end_pass()
            self._engine.end_backward(GRAPH)
        except BaseException as error:
            self.fail(error)
            self._engine.give_up_pass()
            self._raise_explained(explained.in_backward, error)
            raise
        finally:
            self._engine.ignore_gradients(True)
        self._progress.count_micro_batch()

    @torch.no_grad()
    def step(self) -> Tensor | None:
        """Makes the optimizer's step after the last micro-batch of a step; otherwise does nothing. Returns the norm of
        all gradients where they are clipped, otherwise None. FloatingPointError of one of Octavo's optimizers with
        ``nonfinite="raise"`` drops the gradients of this step on all ranks, and training may go on."""
        self._progress.require_usable("step")
        if not self._progress.has_gradients:
            return None
        require_same(self.module, self._memories, self.optimizer, self.parts)
        if self.config.has_parts_apart:
            self._writes.require_none()
        self._gathering.release_all()  # also what forward passes without a backward pass have gathered
        self._gradients.give_to_parts()
        norm = None if self.config.clip_norm is None else self.clip_grad_norm_(self.config.clip_norm)
        self._progress.end_gradients()
        try:
            self.optimizer.step()
            self.take_own_parts()
        except NothingChanged:  # on all ranks
            self._engine.drop_gradients()
            raise
        except BaseException as error:
            self.fail(error)
            explanation = explained.in_step(error, self.optimizer)
            if explanation is not None:
                raise explanation from error
            raise
        finally:
            self._gradients.take_from_parts()
        self._progress.count_step()
        self._begin_compiled_step()
        return norm

    def _begin_compiled_step(self) -> None:
        """Does in compiled runs what their schedule has for the next step. After any error of it ranks may have unlike
        graphs, or unlike parameters that stay whole. Unlike schedules would be named this once only, and cannot be
        replaced any more."""
        if self._compiler is None:
            return
        try:
            self._compiler.begin_step(self._progress.steps)
        except BaseException as error:
            self.fail(error)
            raise

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Clips the norm of all gradients to ``max_norm``. Returns the norm that they had. All ranks call it together,
        after the last micro-batch of a step. ``clip_norm`` in the config does it in every step. Gradients whose norm is
        not finite stay as they are.

        It takes the place of ``torch.nn.utils.clip_grad_norm_``, which finds no gradients: they are in the ranks'
        parts. Raises RuntimeError where there are no gradients, ValueError for a norm below 0.
        """
        require_max_norm(max_norm, "zero.clip_grad_norm_")
        self._require_gradients("clip_grad_norm_")
        norm, factor = self._gradients.clip(max_norm)
        if factor is not None:
            self.handle.scaled_by(factor)
        return norm

    @torch.no_grad()
    def has_finite_gradients(self) -> bool:
        """Whether all gradients of all ranks are finite. All ranks call it together, after the last micro-batch of a
        step. Where it is False, call ``drop_gradients`` in the place of ``step``. Raises RuntimeError where there are
        no gradients."""
        self._require_gradients("has_finite_gradients")
        return self._gradients.are_finite()

    def _require_gradients(self, what: str) -> None:
        if not self._progress.has_gradients:
            raise RuntimeError(f"[zero.{what}] call it between the last backward() of a step and step()")

    @property
    def holds_gradients(self) -> bool:
        """Whether gradients wait for ``step``, which hands them to the optimizer."""
        return self._progress.has_gradients

    def drop_gradients(self) -> None:
        """Drops the gradients of this step, in the place of ``step`` or between the micro-batches of a step. The next
        micro-batch is then the first of a step. Call it on all ranks. What error feedback remembers is again what it
        was before. It is dropped where several micro-batches were sent, as in stages 2 and 3, or where the step has
        ended, as by ``handle.state_dict()``."""
        self._progress.require_usable("drop_gradients")
        if self._progress.end_gradients():
            self._engine.drop_gradients()

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """A context in which all parameters are whole, on all ranks, which call it together. It is for reading or
        saving ``module.state_dict()``, and for passes without gradients that ranks make by themselves.

        In stages 1 and 2 parameters are always whole. Where a rank has its part in other memory, in stage 3 and with
        ``gather``, what is written to them is lost, and RuntimeError is raised at the end of the context: load weights
        before ``octavo.initialize``, and checkpoints by ``load_checkpoint``.
        """
        self._gathering.gather_all()
        try:
            with self._writes.refused() if self.config.has_parts_apart else nullcontext():
                yield
        finally:
            self._gathering.leave_all()

    def register_compile_pass(self, name: str, edit: Edit, contract: Contract) -> None:
        """Registers a pass of the user's own, which ``set_compile_schedule`` can then name. ``edit`` is called with
        each graph."""
        self._of_compiled("register_compile_pass").register_pass(name, edit, contract)

    def set_compile_schedule(self, schedule: Schedule) -> None:
        """Replaces the schedule of the config. Call it on all ranks, with the same schedule, before the first forward
        pass. Raises ValueError where the schedule breaks a contract; the first ``step()`` raises it where ranks have
        other schedules, and the engine then refuses to go on."""
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
        if tensor not in self.parts or not self.config.has_parts_apart:
            return tensor.detach()
        self.bring_back()
        return self.parts[tensor].whole(self._peers, "zero.whole").view(tensor.shape)

    def export_safetensors(self, path: str | Path) -> None:
        """Writes ``module.state_dict()`` to the file ``path``, which ``safetensors`` and ``transformers`` open, with
        parameters as their owners have them. All ranks call it, between steps. Rank 0 writes, tensor by tensor. Raises
        OSError on all ranks where it cannot."""
        self._progress.require_between_steps("export_safetensors")
        export.export(self, as_path("export_safetensors", path), self._peers)

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
        ``torch.distributed.checkpoint``; each rank writes its part. All ranks call it, between steps. The directory
        must be the same one on all hosts, as on a network's file system.

        They are written to a folder, to which ``directory/latest`` points once all is written and on the disk. The
        checkpoint before is then removed. On all ranks buffers become those of rank 0; buffers that ``state_dict()``
        leaves out are not saved. Where a rank cannot write, all ranks raise OSError, ValueError or RuntimeError, which
        names it. Raises ImportError without NumPy, which ``torch.distributed.checkpoint`` needs.
        """
        self._progress.require_between_steps("save_checkpoint")
        self.bring_back()
        from octavo.zero import checkpoint  # imports torch.distributed.checkpoint, which is slow

        checkpoint.save(self, as_path("save_checkpoint", directory), self._peers)

    def load_checkpoint(self, directory: str | Path) -> None:
        """Restores what an engine of the same model and kind of optimizer has saved, on any number of ranks and with
        any stage; on the same number of ranks to the bit. All ranks call it, between steps.

        Raises ValueError for the checkpoint of another model or kind of optimizer and for damaged files, and
        FileNotFoundError where there is none; nothing has changed then. Where only one rank cannot read it, all ranks
        raise OSError, ValueError or RuntimeError, which names that rank. Where this happens on the way, the engine
        refuses to go on.
        """
        self._progress.require_between_steps("load_checkpoint")
        self.bring_back()
        from octavo.zero import checkpoint  # imports torch.distributed.checkpoint, which is slow

        checkpoint.load(self, as_path("load_checkpoint", directory), self._peers)

    def take_own_parts(self) -> None:
        """Updates what modules compute with after ``parts`` were changed, by a step or outside of one. All ranks call
        it, between passes."""
        self._writes.count_renewal()
        self._gathering.renew_all()

    def fail(self, error: BaseException) -> None:
        """Makes the engine refuse to go on from now on, because ``error`` has left some of its values changed and
        others not."""
        self._progress.fail(error)

    def sent_bytes(self) -> int:
        """Returns the bytes that this rank has sent to others, of gradients and parameters."""
        return self._engine.sent_bytes()

    def bring_back(self) -> None:
        """Brings to the device what passes have sent to the host. Call it before ``optimizer.state`` and ``parts`` are
        looked at between a forward pass and its step. Checkpoints, and the optimizer's ``state_dict`` and ``step``, do
        it by themselves."""
        self._engine.restore()
