# SPDX-License-Identifier: Apache-2.0
"""ZeRO-1, 2 and 3 by Octavo's engine: ranks share out optimizer state, gradients and parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from octavo import _C
from octavo._C import Plan
from octavo.ddp import Exempt, exemption, require_same_on_all_ranks
from octavo.plan import as_plan
from octavo.rendezvous import Rendezvous, send_around

_GRAPH = 0  # without torch.compile all parameters are of one


@dataclass(frozen=True)
class ZeroConfig:
    """``zero_stage``: 1 shares out optimizer state, 2 gradients too, 3 parameters too. ``plan``: by which gradients
    travel to the ranks that own their parts. ``gather``: the codec by which parameters travel to all ranks; None: as
    they are. ``accumulation_steps``: micro-batches of a step. ``clip_norm``: of all gradients together; None: they are
    not clipped. ``bucket_mib``: of gradients that travel together; ``gather_mib``: of parameters. ``exempt``: as of
    ``octavo.compress``. ``timeout_s``: how long a rank waits for the others."""

    zero_stage: int
    plan: str | Plan = "dense"
    gather: str | Plan | None = None
    accumulation_steps: int = 1
    clip_norm: float | None = None
    bucket_mib: float = 25.0
    gather_mib: float = 4.0
    exempt: Exempt = None
    timeout_s: float = 300.0

    def __post_init__(self) -> None:
        self._require(self.zero_stage in (1, 2, 3), "zero_stage as 1, 2 or 3", self.zero_stage)
        self._require(self.accumulation_steps >= 1, "accumulation_steps of at least 1", self.accumulation_steps)
        self._require(self.clip_norm is None or self.clip_norm > 0, "a clip_norm above 0", self.clip_norm)
        self._require(self.bucket_mib > 0, "a bucket_mib above 0", self.bucket_mib)
        self._require(self.gather_mib > 0, "a gather_mib above 0", self.gather_mib)

    @staticmethod
    def _require(condition: bool, expected: str, got: object) -> None:
        if not condition:
            raise ValueError(f"[zero.initialize] expected {expected}, got {got!r}")


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
    known = {field.name for field in fields(ZeroConfig)}
    if strangers := config.keys() - known:
        raise ValueError(
            f"[zero.initialize] there is no {', '.join(sorted(strangers))} in the config; known are "
            f"{', '.join(sorted(known))}"
        )
    if "zero_stage" not in config:
        raise ValueError("[zero.initialize] the config needs a zero_stage: 1, 2 or 3")
    return ZeroEngine(model, optimizer, ZeroConfig(**config), group)


class ZeroEngine:
    """What ``octavo.initialize`` makes. After an error of ``backward`` or ``step`` that is not a ValueError, ranks may
    differ: start again from a checkpoint."""

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, config: ZeroConfig, group: dist.ProcessGroup | None = None
    ):
        group = group if group is not None else dist.group.WORLD
        if group is None:
            raise ValueError("[zero.initialize] there is no process group: call init_process_group() first")
        if optimizer.state:
            raise ValueError("[zero.initialize] the optimizer has state already: give a new one")
        self.module, self.optimizer, self.config = model, optimizer, config
        self._group = group
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._ids = {parameter: id for id, parameter in enumerate(self._parameters.values())}
        self._require_trainable()
        plan = as_plan(config.plan)
        is_exempt = exemption(config.exempt, self._parameters, "zero.initialize")
        exempt = {name: bool(is_exempt(name, p)) for name, p in self._parameters.items()}
        plan.require_rules_fit([name for name, is_exempt in exempt.items() if not is_exempt])
        self._engine = self._connect(plan, exempt)
        send_around(model, group)
        self._shards = {parameter: self._share_out(name, exempt[name]) for name, parameter in self._parameters.items()}
        getattr(self._engine, f"register_graph_z{config.zero_stage}")(_GRAPH, list(range(len(self._shards))))
        for param_group in optimizer.param_groups:
            mine = [self._shards[p].values for p in param_group["params"] if p in self._shards]
            param_group["params"] = [values for values in mine if values.numel() > 0]
        self._micro_batches = 0
        self._in_backward = False
        for parameter in self._shards:
            parameter.register_post_accumulate_grad_hook(self._reduce)
        self._gathering = _Gathering(self) if config.zero_stage == 3 else None

    # ---- a step

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.module(*arguments, **named)

    @property
    def is_last_micro_batch(self) -> bool:
        """Whether the next ``backward`` is the last one of a step."""
        return (self._micro_batches + 1) % self.config.accumulation_steps == 0

    def backward(self, loss: Tensor) -> None:
        """Adds up the gradients of this micro-batch, averaged over ranks and micro-batches, where they belong."""
        self._engine.start_backward(self.is_last_micro_batch)
        self._in_backward = True
        try:
            (loss / self.config.accumulation_steps).backward()
        finally:
            self._in_backward = False
        if self._gathering is not None:
            self._gathering.end_pass()
        self._engine.end_backward(_GRAPH)
        self._micro_batches += 1

    @torch.no_grad()
    def step(self) -> Tensor | None:
        """The optimizer's step, after the last micro-batch of one; otherwise nothing. Returns the norm of all gradients
        where they are clipped."""
        if self._micro_batches % self.config.accumulation_steps != 0:
            return None
        reduced = set(self._engine.reduced_params())
        for parameter, shard in self._shards.items():
            shard.values.grad = shard.gradient if self._ids[parameter] in reduced else None
        norm = None if self.config.clip_norm is None else self._clip()
        self.optimizer.step()
        for shard in self._shards.values():
            shard.values.grad = None
        if self._gathering is None:
            self._engine.gather_updated()
        return norm

    def _clip(self) -> Tensor:
        """By the norm of all ranks' parts."""
        gradients = [shard.values.grad for shard in self._shards.values() if shard.values.grad is not None]
        squares = torch.nn.utils.get_total_norm(gradients).double().square()
        dist.all_reduce(squares, group=self._group)
        norm = squares.sqrt()
        torch._foreach_mul_(gradients, (self.config.clip_norm / (norm + 1e-6)).clamp(max=1.0).to(gradients[0].dtype))
        return norm

    def _reduce(self, parameter: Tensor) -> None:
        """Of a parameter whose gradient is complete."""
        if not self._in_backward:
            raise RuntimeError("[zero.backward] call engine.backward(loss) in place of loss.backward()")
        self._engine.reduce_grad(parameter.grad, _GRAPH, self._ids[parameter])
        parameter.grad = None
        if self._gathering is not None:
            self._gathering.release(parameter)

    def sent_bytes(self) -> int:
        """Bytes that this rank has sent to others: gradients and parameters."""
        return self._engine.sent_bytes()

    # ---- set-up

    def _require_trainable(self) -> None:
        if not self._parameters:
            raise ValueError("[zero.initialize] the model has no parameter that requires a gradient")
        devices = {p.device for p in self._parameters.values()}
        if len(devices) > 1:
            raise ValueError(
                f"[zero.initialize] expected all parameters on one device, got {sorted(map(str, devices))}"
            )
        for name, parameter in self._parameters.items():
            if not parameter.is_contiguous() or parameter.is_complex():
                raise ValueError(
                    f"[zero.initialize] expected {name} real and in row-major order, got {parameter.dtype} with "
                    f"strides {parameter.stride()}: ranks own ranges of its memory"
                )
        of_optimizer = {p for group in self.optimizer.param_groups for p in group["params"]}
        for name, parameter in self._parameters.items():
            if parameter not in of_optimizer:
                raise ValueError(
                    f"[zero.initialize] the optimizer has no {name}: give it all of model.parameters(), or let the "
                    f"parameter need no gradient"
                )

    def _connect(self, plan: Plan, exempt: dict[str, bool]) -> _C.Engine:
        gather = None if self.config.gather is None else as_plan(self.config.gather)
        rendezvous = Rendezvous(self._group, "zero.initialize", self.config.timeout_s)
        require_same_on_all_ranks(
            rendezvous,
            self._group.rank(),
            {
                "zero_stage": self.config.zero_stage,
                "plan": str(plan),
                "gather": str(gather),
                "accumulation_steps": self.config.accumulation_steps,
                "bucket_mib": self.config.bucket_mib,
                "gather_mib": self.config.gather_mib,
                "exempt parameters": [name for name, is_exempt in exempt.items() if is_exempt],
                "model": [(name, tuple(p.shape), str(p.dtype)) for name, p in self._parameters.items()],
            },
            "zero.initialize",
        )
        elements = max(1, int(self.config.bucket_mib * 2**20) // 4)
        return _C.Engine(rendezvous.connect(), elements, plan, gather, self.config.timeout_s)

    def _share_out(self, name: str, exempt: bool) -> _Shard:
        parameter = self._parameters[name]
        id, whole = self._ids[parameter], parameter.data
        first, count = self._engine.owned(whole.numel())
        values = whole.view(-1)[first : first + count]
        gradient = torch.zeros_like(values)
        is_apart = self.config.zero_stage == 3 or self.config.gather is not None  # else in its place in the whole
        values = values.clone() if is_apart else values
        if self.config.zero_stage == 3:
            self._engine.register_z3_param(id, list(whole.shape), values, gradient, False, name, exempt)
        else:
            own_part = values if is_apart else None
            self._engine.register_param(id, list(whole.shape), whole, gradient, first, name, exempt, own_part)
        return _Shard(nn.Parameter(values), gradient)


@dataclass
class _Shard:
    """What a rank has of a parameter, flat: the optimizer's parameter, and where its gradient comes."""

    values: nn.Parameter
    gradient: Tensor


class _Gathering:
    """Stage 3 without torch.compile: parameters are whole while a module uses them, forward and backward; between,
    their memory has no bytes. Views that autograd has saved are of the same memory, and valid when it is filled again.

    Parameters travel in transfers of some MiB, one of which is under way while modules work with the last one: for
    those modules that came next in the pass before. Where others come, their parameters are gathered alone.
    """

    def __init__(self, engine: ZeroEngine):
        self._engine, self._ids = engine._engine, engine._ids
        self._transfer_bytes = int(engine.config.gather_mib * 2**20)
        self._bytes = {p: p.untyped_storage().nbytes() for p in engine._shards}
        self._users = dict.fromkeys(engine._shards, 0)  # modules that are at work with it
        self._moving: set[Tensor] = set()
        self._visits: list[int] = []  # modules of this pass, in the order in which they needed their parameters
        self._last_visits: list[int] = []
        self._own: list[list[Tensor]] = []  # by module
        for parameter in engine._shards:
            parameter.untyped_storage().resize_(0)
        for module in engine.module.modules():
            own = [p for p in module.parameters(recurse=False) if p in self._users]
            if own:
                number = len(self._own)
                self._own.append(own)
                module.register_forward_pre_hook(partial(self._before_forward, number))
                module.register_forward_hook(partial(self._after_forward, number), always_call=True)

    def gather(self, parameters: Iterable[Tensor]) -> None:
        """Until they are whole."""
        needed = list(parameters)
        self._start(needed)
        for parameter in needed:
            if parameter in self._moving:
                self._engine.wait_allgather(self._ids[parameter])
                self._moving.discard(parameter)

    def release(self, parameter: Tensor) -> None:
        if self._users[parameter] > 0 or parameter.untyped_storage().nbytes() == 0:
            return
        self.gather([parameter])  # it may be on its way for a module that did not come
        self._engine.release_param(_GRAPH, self._ids[parameter], 1)
        parameter.untyped_storage().resize_(0)

    def end_pass(self) -> None:
        """Releases what has no gradient of its own in this backward pass, too."""
        for parameter in self._users:
            self._users[parameter] = 0
            self.release(parameter)
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
        for parameter in self._own[number]:
            self._users[parameter] += 1
        self._visit(number)

    def _after_forward(self, number: int, _module: nn.Module, _arguments: Any, output: Any) -> None:
        for parameter in self._own[number]:
            self._users[parameter] -= 1
            self.release(parameter)
        outputs = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad]
        if outputs and torch.is_grad_enabled():
            register_multi_grad_hook(outputs, lambda _: self._visit(number), mode="any")
