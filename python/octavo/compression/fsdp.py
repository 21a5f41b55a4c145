# SPDX-License-Identifier: Apache-2.0
"""Compressed gradients for models of FSDP2 (``torch.distributed.fsdp.fully_shard``).

FSDP2 reduces the gradients of one parameter group at a time. A parameter group has the parameters of the modules that
were passed to one ``fully_shard``. On a mesh of shards its reduce-scatter is replaced. Where the shards have replicas,
the reduce-scatter stays dense, and the all-reduce between replicas, which FSDP2 leaves to a hook, is compressed.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from octavo import _C
from octavo._C import Plan
from octavo.compression.handle import Handle
from octavo.hooks import OwnHook
from octavo.optim.joined import joined_optimizer, require_no_momentum
from octavo.parameters import Exempt, Row, exempt_by_name, plain_name, require_kernels, table_of
from octavo.rendezvous import Rendezvous, as_group, difference_between_ranks, refuse_difference

_compressed: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()


class ShardedHandle(Handle):
    """The handle of a model of FSDP2. Gradients are averaged, never momenta. Where the shards have replicas, the
    statistics of a parameter are those of this rank's shard."""

    def __init__(
        self,
        compressor: "_C.Compressor",
        parameters: dict[str, DTensor],
        model: nn.Module,
        unmovable: Sequence[str],
        **more: Any,
    ):
        """``unmovable``: names of parameters sharded by another dimension than the first. ``more``: as in
        ``Handle``."""
        super().__init__(compressor, parameters, model, **more)
        self._unmovable = unmovable
        weakref.finalize(self, _end_last_step, compressor)

    def _clipped_parameters(self) -> Sequence[nn.Parameter]:
        """Returns all sharded parameters, also those of groups that were frozen at ``octavo.compress``, which FSDP2
        reduces by itself."""
        return [parameter for parameter in self._model.parameters() if isinstance(parameter, DTensor)]

    def _load_world(self, states: list["_C.CompressorState"]) -> None:
        if self._unmovable:
            raise ValueError(
                f"[fsdp.load_state_dict] {self._unmovable[0]} is not sharded by its first dimension, and the residuals "
                f"of such parameters are not redistributed over another number of ranks: resume on {len(states)} "
                f"ranks, or start with an empty state"
            )
        super()._load_world(states)


def _end_last_step(compressor: "_C.Compressor") -> None:
    """Ends the last step before this rank leaves: after the buckets, each rank tells the others whether its step was
    finite, and they wait for that message. Errors are ignored, because no step follows."""
    with contextlib.suppress(RuntimeError, TimeoutError):
        compressor.stats()


class _ReduceScatter:
    """The reduce-scatter that FSDP2 calls for a parameter group, which implements FSDP2's ``ReduceScatter``."""

    def __init__(self, hook: "_C.FsdpHook", group: int):
        self._hook, self._group = hook, group

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(tuple(size), dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp,
        async_op: bool = False,
    ) -> None:
        self._hook.reduce_scatter(self._group, output_tensor, input_tensor, op, group.size())


class _ParameterGroup:
    """The modules that were passed to one ``fully_shard``, and their sharded parameters, in FSDP2's order."""

    def __init__(self, modules: Sequence[nn.Module]):
        self.modules = modules
        self._places: dict[DTensor, tuple[nn.Module, str]] = {}
        for module in _managed(modules):
            for name, parameter in module.named_parameters(recurse=False):
                if isinstance(parameter, DTensor) and parameter.requires_grad:
                    self._places.setdefault(parameter, (module, name))

    @property
    def parameters(self) -> list[DTensor]:
        return list(self._places)

    def watch(self, on_gradient: Callable[[DTensor], None]) -> None:
        """Calls ``on_gradient(parameter)``, with the sharded parameter, whenever backward has computed the gradient of
        the whole parameter."""
        watched: dict[DTensor, Tensor] = {}

        def watch_whole_parameters(*_: object) -> None:
            for sharded, (module, name) in self._places.items():
                whole = getattr(module, name)
                if isinstance(whole, DTensor) or not whole.requires_grad or watched.get(sharded) is whole:
                    continue
                whole.register_post_accumulate_grad_hook(lambda _, sharded=sharded: on_gradient(sharded))
                watched[sharded] = whole

        for module in self.modules:  # called after FSDP2's own hook, which gathers the parameters
            module.register_forward_pre_hook(watch_whole_parameters)


def compress_fsdp(
    model: FSDPModule,
    plan: Plan,
    *,
    optimizer: Optimizer | None,
    scaler: "torch.amp.GradScaler | None",
    exempt: Exempt,
    replicas: dist.ProcessGroup | None,
    paging: "_C.StatePaging",
    seed: int,
    timeout_s: float,
) -> ShardedHandle:
    """Does what ``octavo.compress`` does, for a model of FSDP2."""
    if replicas is not None:
        replicas = as_group(replicas, "fsdp.compress", "replicas")
    joined = joined_optimizer(optimizer, "fsdp.compress")
    if joined is not None:
        raise ValueError(
            f"[fsdp.compress] {type(joined).__name__} sends momenta or updates, which are whole on a rank only "
            f"with DistributedDataParallel: use another optimizer and a plan for gradients, such as int4+ef"
        )
    require_no_momentum(optimizer, plan, "fsdp.compress")
    if model in _compressed:
        raise ValueError("[fsdp.compress] this model is compressed already: keep its handle and call its set_plan()")
    for module in _fsdp_modules(model):
        module.reshard()
    names = {parameter: plain_name(name) for name, parameter in model.named_parameters()}
    groups = [group for group in _parameter_groups(model) if group.parameters]
    parameters = {names[p]: p for group in groups for p in group.parameters}
    shards = _shard_group(parameters)
    sent = {name: p if replicas is None else p.to_local() for name, p in parameters.items()}
    table = table_of(sent, exempt_by_name(exempt, parameters, "fsdp.compress"), plan)
    _require_values(parameters)
    require_kernels(parameters.values())
    meetings = {
        group: Rendezvous(group, "fsdp.compress", timeout_s) for group in (replicas, shards) if group is not None
    }
    agreed = {
        "plan": str(plan),
        "use of a GradScaler": scaler is not None,
        "exempt parameters": [name for name, _, is_exempt, _ in table if is_exempt],
        "model": [(name, tuple(p.shape), p.placements) for name, p in parameters.items()],
        "parameter groups": [[names[p] for p in group.parameters] for group in groups],
        "use of replicas": replicas is not None,
        "seed": seed,
    }
    difference = None
    for group, meeting in meetings.items():  # those of the second are told what a rank has learnt in the first
        difference = difference_between_ranks(meeting, agreed, dist.get_process_group_ranks(group), difference)
    refuse_difference(difference, dist.get_rank(), agreed, "fsdp.compress")
    setting = dict(timeout_s=timeout_s, paging=paging, seed=seed)
    compressor, covers = _compressor(meetings, replicas, shards, plan, table, parameters.values(), **setting)
    # FSDP2 calls no reduce-scatter where one rank has all shards, but it calls the hook of its all-reduce
    by_all_reduce = replicas is not None or shards.size() == 1
    _attach(model, compressor, groups, list(parameters.values()), shards.size(), by_all_reduce=by_all_reduce)
    _compressed.add(model)
    unmovable = [name for name, p in parameters.items() if _shard_dim(p) != 0 and replicas is None]
    return ShardedHandle(compressor, parameters, model, unmovable, covers=covers, optimizer=optimizer, scaler=scaler)


def _compressor(
    meetings: Mapping[dist.ProcessGroup, Rendezvous],
    replicas: dist.ProcessGroup | None,
    shards: dist.ProcessGroup,
    plan: Plan,
    table: list[Row],
    parameters: Iterable[DTensor],
    **setting: Any,
) -> tuple["_C.Compressor", str]:
    """Returns this rank's compressor, and what its states cover (``Handle``)."""
    if replicas is None:
        rows = [_row(p) for p in parameters]
        return _C.shard_compressor(meetings[shards].connect(), plan, table, rows, **setting), "shards"
    named = ((meetings[group].connect(), dist.get_process_group_ranks(group)) for group in (replicas, shards))
    covers = f"replicas of shard {shards.rank()} of {shards.size()}"
    return _C.replica_compressor(*named, plan, table, **setting), covers


def _attach(
    model: FSDPModule,
    compressor: "_C.Compressor",
    groups: Sequence[_ParameterGroup],
    parameters: Sequence[DTensor],
    shards: int,
    *,
    by_all_reduce: bool,
) -> None:
    index = {parameter: i for i, parameter in enumerate(parameters)}
    hook = _C.FsdpHook(compressor, [[(index[p], _shard_size(p, shards)) for p in group.parameters] for group in groups])
    for number, group in enumerate(groups):
        for module in group.modules:
            try:
                if by_all_reduce:
                    module.set_all_reduce_hook(partial(hook.all_reduce, number))
                else:
                    module.set_custom_reduce_scatter(_ReduceScatter(hook, number))
            except ValueError as error:  # raised for a module of several parameter groups
                raise ValueError(
                    f"[fsdp.compress] a module has parameters on several meshes, for which FSDP2 does not accept "
                    f"Octavo's collectives: let shard_placement_fn choose only dimensions ({error})"
                ) from error
        group.watch(lambda parameter: hook.mark(index[parameter]))
    model.register_forward_pre_hook(OwnHook(lambda *_: hook.begin_pass()))


def _fsdp_modules(model: nn.Module) -> list[FSDPModule]:
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def _parameter_groups(model: nn.Module) -> list[_ParameterGroup]:
    """Returns the parameter groups of a model. Modules that were passed to ``fully_shard`` together share one state of
    FSDP2."""
    by_state: dict[object, list[nn.Module]] = {}
    for module in _fsdp_modules(model):
        by_state.setdefault(fully_shard.state(module), []).append(module)
    return [_ParameterGroup(_in_order(state, modules)) for state, modules in by_state.items()]


def _in_order(state: object, modules: list[nn.Module]) -> list[nn.Module]:
    """Returns ``modules`` in the order in which ``fully_shard`` was given them. FSDP2 lays out their parameters in this
    order, which only its own ``state`` tells."""
    if len(modules) == 1:
        return modules
    ordered = list(getattr(state, "_modules", ()))
    if set(ordered) != set(modules):
        raise ValueError(
            f"[fsdp.compress] this version of torch does not tell in which order fully_shard was given "
            f"{len(modules)} modules: call fully_shard for each of them"
        )
    return ordered


def _managed(modules: Sequence[nn.Module]) -> Iterable[nn.Module]:
    """Yields the modules whose parameters belong to one ``fully_shard``, in FSDP2's order: children first."""
    seen: set[nn.Module] = set()

    def visit(module: nn.Module) -> Iterable[nn.Module]:
        seen.add(module)
        for child in module.children():
            if child not in seen and not isinstance(child, FSDPModule):
                yield from visit(child)
        yield module

    for module in modules:
        yield from visit(module)


def _shard_group(parameters: dict[str, DTensor]) -> dist.ProcessGroup:
    """Returns the process group of the ranks over which all parameters are sharded. Raises ValueError or TypeError for
    parameters that cannot be compressed."""
    if not parameters:
        raise ValueError("[fsdp.compress] no parameter of the model is sharded and needs a gradient: call fully_shard")
    meshes = {parameter.device_mesh for parameter in parameters.values()}
    for name, parameter in parameters.items():
        if parameter.is_complex():
            raise TypeError(
                f"[fsdp.compress] {name} is complex: with fully_shard only real parameters are supported; keep it as "
                f"a real one of twice the size (torch.view_as_complex), or use DistributedDataParallel"
            )
        if parameter.device_mesh.ndim > 1:
            raise ValueError(
                f"[fsdp.compress] {name} lies on a mesh of {parameter.device_mesh.ndim} dimensions, "
                f"{parameter.device_mesh.mesh_dim_names or ''}, where FSDP2 all-reduces by itself: for replicas of "
                f"shards, call fully_shard with only the mesh of the shards, mesh=mesh['shard'], and pass "
                f"replicas=mesh.get_group('replicate') here; tensor parallelism is not supported"
            )
        if _shard_dim(parameter) is None:
            raise ValueError(
                f"[fsdp.compress] {name} is replicated, not sharded: wrap the model in DistributedDataParallel"
            )
    if len(meshes) > 1:
        raise ValueError(
            f"[fsdp.compress] the parameters are sharded over {len(meshes)} meshes: shard all of them over one"
        )
    return meshes.pop().get_group()


def _require_values(parameters: dict[str, DTensor]) -> None:
    """Raises NotImplementedError for parameters on the device meta."""
    if name := next((name for name, parameter in parameters.items() if parameter.is_meta), None):
        raise NotImplementedError(
            f"[fsdp.compress] {name} is on the device meta, where it has no values: give the model memory by "
            f"model.to_empty(device=...), initialize its parameters, and call octavo.compress after that"
        )


def _shard_dim(parameter: DTensor) -> int | None:
    return getattr(parameter.placements[0], "dim", None)


def _row(parameter: DTensor) -> int:
    """Returns the number of consecutive elements that always have one owner: a row of a parameter that is sharded by
    its first dimension, otherwise 1, because FSDP2 cuts other dimensions into equal parts."""
    if _shard_dim(parameter) != 0:
        return 1
    return max(1, parameter.numel() // max(1, parameter.shape[0]))


def _shard_size(parameter: DTensor, shards: int) -> int:
    """Returns the number of elements of a rank's shard in FSDP2's flat tensors, padding included. It is equal for all
    ranks."""
    row = _row(parameter)
    return -(-parameter.numel() // (row * shards)) * row
