# SPDX-License-Identifier: Apache-2.0
"""Compressed gradients for ``DistributedDataParallel``."""

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from hashlib import sha256

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from octavo import _C
from octavo._C import Plan
from octavo.plan import as_plan
from octavo.private_group import private_group

Exempt = Callable[[str, nn.Parameter], bool] | Iterable[str] | None

#: Below this a parameter's scales and latency cost more than its compression saves.
SMALLEST_COMPRESSED = 2048
_SCHEMA = 2


def is_exempt_by_default(name: str, parameter: nn.Parameter) -> bool:
    """Norms, biases (all that has one dimension or none) and tiny parameters go in float32.

    They are well under 1 % of a model; exempting them removes most of the relative error of a compressed gradient.
    """
    return parameter.ndim <= 1 or parameter.numel() < SMALLEST_COMPRESSED


class Handle:
    """What ``octavo.compress`` returns: the plan in force, its state and its account. Made by ``compress`` alone.

    State (residuals) is kept by parameter name, in bfloat16, and differs from rank to rank: save one ``state_dict``
    a rank. Methods may be called between steps, from any thread.
    """

    def __init__(self, compressor: "_C.Compressor", parameters: Mapping[str, nn.Parameter]):
        self._compressor = compressor
        self._parameters = dict(parameters)

    @property
    def plan(self) -> Plan:
        return self._compressor.plan

    def set_plan(self, plan: str | Plan) -> None:
        """Takes effect with the next backward pass. Call it with the same plan on all ranks."""
        self._compressor.set_plan(as_plan(plan))

    def stats(self) -> dict[str, int]:
        """``wire_bytes`` sent by this rank so far, ``dense_bytes`` that float32 would have sent, ``steps``, and
        ``nonfinite_steps``: steps in which some rank had a NaN or an infinity, whose residuals were rolled back."""
        return self._compressor.stats()

    @property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        """Those of the compressed model that have gradients, exempt ones included."""
        return tuple(self._parameters.values())

    def state_dict(self) -> dict[str, Tensor | int | str]:
        """A flat dict of tensors, ints and strings; the tensors are copies."""
        state: dict[str, Tensor | int | str] = {
            "schema": _SCHEMA,
            "plan": str(self.plan),
            "rank": self._compressor.rank,
            "world_size": self._compressor.world_size,
        }
        state.update({key: values.clone() for key, values in self._compressor.residuals().items()})
        return state

    def load_state_dict(self, state: Mapping[str, Tensor | int | str]) -> None:
        """Restores ``state_dict()``: residuals and plan. ValueError where it does not fit; nothing changes then."""
        if not isinstance(state, Mapping):
            raise TypeError(f"[ddp.load_state_dict] expected what state_dict() returned, got {type(state).__name__}")
        if state.get("schema") != _SCHEMA:
            raise ValueError(
                f"[ddp.load_state_dict] expected a state of schema {_SCHEMA}, which this version of Octavo writes, got "
                f"{state.get('schema')!r}: start with an empty state"
            )
        ours = {"rank": self._compressor.rank, "world_size": self._compressor.world_size}
        for key, expected in ours.items():
            if state.get(key) != expected:
                raise ValueError(
                    f"[ddp.load_state_dict] expected {key} {expected}, got {state.get(key)!r}: load the state that "
                    f"this rank saved in a world of the same size, or start with an empty state"
                )
        plan = as_plan(str(state.get("plan")))
        self._compressor.load_residuals({key: value for key, value in state.items() if isinstance(value, Tensor)})
        if plan != self.plan:
            self._compressor.set_plan(plan)

    def set_momentum(self, momenta: Mapping[nn.Parameter, tuple[Tensor, Tensor]], beta: float) -> None:
        """From now on averages ``beta * m + (1 - beta) * P * gradient`` of these parameters instead of gradients.

        ``momenta``: ``(m, P)`` by parameter, float32, equal on all ranks; shared with the hook, which reads them during
        backward; their owner updates them between steps. Empty: back to gradients. ``OneBitAdamW`` builds on this.
        """
        name_of = {parameter: name for name, parameter in self._parameters.items()}
        unknown = [tuple(p.shape) for p in momenta if p not in name_of]
        if unknown:
            raise ValueError(f"[ddp.set_momentum] expected parameters of the compressed model, got others: {unknown}")
        for parameter, pair in momenta.items():
            for tensor in pair:
                if tensor.device != parameter.device:
                    raise ValueError(
                        f"[ddp.set_momentum] expected momenta on the device of {name_of[parameter]}, "
                        f"{parameter.device}, got one on {tensor.device}"
                    )
        self._compressor.set_momentum({name_of[p]: pair for p, pair in momenta.items()}, beta)

    def gradient_powers(self) -> dict[nn.Parameter, float]:
        """The mean square of each parameter's gradient in the last step, averaged over ranks: the same on all ranks.

        An estimate from a 32nd of the elements of a large parameter. 0 under plan dense, which does not need it.
        """
        return dict(zip(self._parameters.values(), self._compressor.gradient_powers(), strict=True))

    def drop_residuals(self) -> None:
        """Forgets what was not sent yet."""
        self._compressor.drop_residuals()


def compress(
    ddp_model: DistributedDataParallel,
    plan: str | Plan = "int4+ef",
    *,
    exempt: Exempt = None,
    timeout_s: float = 300.0,
) -> Handle:
    """Compresses the gradients that a DDP model exchanges; everything else about training stays as it is.

    ``plan``: see ``octavo.Plan``. ``exempt``: which parameters go in float32: a function of name and parameter, or
    names with ``*`` (default: ``is_exempt_by_default``). ``timeout_s``: after so long a wait for the peers, backward
    raises RuntimeError. The hook runs in C++ on a thread of its own, without the GIL, while backward goes on. Call it
    once a model, on all ranks, with the same arguments: ValueError on all of them where these differ. The gradients are
    encoded by their own device's kernels: NotImplementedError, with the reason, where it has none.
    """
    if not isinstance(ddp_model, DistributedDataParallel):
        raise TypeError(f"[ddp.compress] expected a DistributedDataParallel model, got {type(ddp_model).__name__}")
    if getattr(ddp_model, "_use_python_reducer", False):
        raise ValueError(
            "[ddp.compress] expected DDP's C++ reducer, got optimize_ddp='python_reducer', which calls no hook"
        )
    plan = as_plan(plan)
    parameters = {name: p for name, p in ddp_model.module.named_parameters() if p.requires_grad}
    if not plan.is_dense:
        for parameter in parameters.values():
            _C.require_kernels(parameter)
    is_exempt = _exemption(exempt, parameters)
    group = private_group(ddp_model.process_group, timeout_s)
    table = [(name, p.numel(), bool(is_exempt(name, p))) for name, p in parameters.items()]
    _require_same_on_all_ranks(
        group, {"plan": str(plan), "exempt parameters": [n for n, _, e in table if e], "model": table}
    )
    compressor = _C.Compressor(group, plan, table, timeout_s)
    try:
        _C.register_ddp_hook(ddp_model.reducer, compressor, list(parameters.values()))
    except RuntimeError as error:
        raise ValueError(
            "[ddp.compress] expected a DDP model without a communication hook, got one that has it already; "
            "DDP takes one hook in its life: keep the first handle and call its set_plan()"
        ) from error
    return Handle(compressor, parameters)


def _require_same_on_all_ranks(group: dist.ProcessGroup, ours: Mapping[str, object]) -> None:
    """Ranks that disagree would read each other's bytes wrongly, or wait for ever."""
    digests = bytearray().join(sha256(repr(value).encode()).digest() for value in ours.values())
    mine = torch.frombuffer(digests, dtype=torch.uint8).view(len(ours), -1)
    all_digests = [torch.empty_like(mine) for _ in range(group.size())]
    dist.all_gather(all_digests, mine, group=group)  # tensors: torch's collectives of objects need NumPy
    for rank, theirs in enumerate(all_digests):
        for what, digest, first in zip(ours, theirs, all_digests[0], strict=True):
            if not torch.equal(digest, first):
                raise ValueError(
                    f"[ddp.compress] expected the same {what} on all ranks, got another on rank {rank} than on rank 0 "
                    f"(here, rank {group.rank()}: {_short(ours[what])})"
                )


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 100 else text[:97] + "..."


def _exemption(exempt: Exempt, parameters: Mapping[str, nn.Parameter]) -> Callable[[str, nn.Parameter], bool]:
    if exempt is None:
        return is_exempt_by_default
    if callable(exempt):
        return exempt
    patterns = [exempt] if isinstance(exempt, str) else list(exempt)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in parameters):
            raise ValueError(
                f"[ddp.compress] expected exempt patterns that match parameters, got '{pattern}', which matches none "
                f"of {len(parameters)}, such as '{next(iter(parameters), '')}'"
            )
    return lambda name, parameter: parameter.numel() == 0 or any(fnmatchcase(name, p) for p in patterns)
