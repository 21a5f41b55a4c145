# SPDX-License-Identifier: Apache-2.0
"""Translates states that other libraries' optimizers saved into the form that ``load_state_dict`` takes, and the
reverse.

torch's states need no import: names and meaning are the same as ours, and ``load_state_dict`` takes them. States of
bitsandbytes have other names, and functions translate them, so that a load need not guess who wrote a file. Its 8-bit
codes and ours are of one map, in blocks of 256, and are neither decoded nor encoded. Only the sign of a block differs.
Our scale is the block's extreme with its sign, and the extreme has the code of 1. The scale of bitsandbytes is the
magnitude of the extreme, and it has no code for -1.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from octavo.optim.base import unwrapped
from octavo.optim.fused import OWN_OPTIONS, FusedOptimizer
from octavo.optim.shards import as_shard, is_sharded, local
from octavo.optim.state_formats import BLOCK, IS_SIGNED, NESTED, blocks_of, floats_of, has_codes, names_of

MOMENTS = {"1": "exp_avg", "2": "exp_avg_sq"}  # the moments, by the number that bitsandbytes gives them
OLD_BLOCK = 2048  # the block of bitsandbytes before 0.44


def from_bitsandbytes(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Translates the state of Adam, AdamW or Lion of bitsandbytes, in 32 or block-wise 8 bits, paged or not. Returns
    what ``load_state_dict`` of our class of the same name takes. The codes are taken as they are; the tensors are
    shared.

    Both Adam and AdamW of bitsandbytes decouple weight decay. Go on with our ``AdamW``: ``Adam`` refuses to load the
    state where there is a decay. Raises ValueError for the state of another optimizer, except LAMB, whose state is like
    AdamW's, for tensor-wise 8-bit states, and for codes of another map.
    """
    is_adam = any("state2" in state | state.get(NESTED, {}) for state in state_dict["state"].values())
    of_adam = {"decoupled_weight_decay": True} if is_adam else {}
    groups = [_without(group, {"alpha", "t_alpha", "t_beta3"}) | of_adam for group in state_dict["param_groups"]]
    if any(group.get("alpha") for group in state_dict["param_groups"]):
        raise ValueError("[optim.from_bitsandbytes] AdEMAMix has no counterpart in octavo.optim")
    groups_of_lion = [] if is_adam or not any(state_dict["state"].values()) else state_dict["param_groups"]
    if any(group.get("eps") or group.get("betas", (0, 1))[1] == 0 for group in groups_of_lion):
        raise ValueError(
            "[optim.from_bitsandbytes] expected the state of Adam, AdamW or Lion, got that of SGD, LARS, RMSprop or "
            "Adagrad, whose options a Lion does not have: they have no counterpart in octavo.optim"
        )
    return {"state": {key: _imported(state) for key, state in state_dict["state"].items()}, "param_groups": groups}


def to_bitsandbytes(optimizer: FusedOptimizer) -> dict[str, Any]:
    """Returns what ``load_state_dict`` of bitsandbytes' class of the same name takes. Takes an optimizer out of
    wrappers such as Accelerate's.

    States in 32 bits stay in 32 bits, codes of 8 bits keep their values, and codes of 4 bits become codes of 8. There
    is one exception: where the extreme of a momentum's block is negative, the extreme and what the map rounds to it
    become -0.993 of its magnitude, as in any such block of bitsandbytes. ``extra_bits`` are left out. Raises ValueError
    for parameters that are DTensors, of which bitsandbytes has no states, and for a weight decay of ``Adam``, because
    bitsandbytes decouples that of both its classes. Raises TypeError for another kind of optimizer.
    """
    optimizer = _fused("to_bitsandbytes", optimizer)
    for group in optimizer.param_groups:
        if group["weight_decay"] and not group.get("decoupled_weight_decay", True):
            raise ValueError(
                f"[optim.to_bitsandbytes] bitsandbytes decouples weight decay, and here it is {group['weight_decay']} "
                f"times the parameter in the gradient: set it to 0, or take to_torch()"
            )
    for parameter in optimizer.state:
        if is_sharded(parameter):
            raise ValueError(
                f"[optim.to_bitsandbytes] bitsandbytes has no states of DTensors, and a {tuple(parameter.shape)} "
                f"parameter is one: gather the model first, or take to_torch()"
            )

    def exported(state: dict[str, Tensor], bits: int, parameter: Tensor) -> dict[str, Any]:
        shape = parameter.shape
        others: dict[str, Any] = {"step": int(state["step"])}
        for number, moment in MOMENTS.items():
            if has_codes(state, moment):
                codes, scales = _codes_of_8_bits(state, moment, bits, shape)
                others |= {f"state{number}": codes.view(shape), f"absmax{number}": scales.abs()}
                others[f"qmap{number}"] = _map_of(moment).to(codes.device)
            elif moment in state:
                others[f"state{number}"] = state[moment].clone(memory_format=torch.contiguous_format)
        return others

    return _exported(optimizer, exported, {"eps": 0.0}, {*OWN_OPTIONS, "decoupled_weight_decay"})


def to_torch(optimizer: FusedOptimizer) -> dict[str, Any]:
    """Returns what ``load_state_dict`` of ``torch.optim.Adam`` and ``AdamW`` takes, with all moments in float32.
    ``extra_bits`` are left out. For Lion, which torch does not have, it returns the momentum. The moments of DTensors
    are DTensors, as ``fully_shard`` needs them. Takes an optimizer out of wrappers such as Accelerate's. Raises
    TypeError for another kind of optimizer."""
    optimizer = _fused("to_torch", optimizer)

    def exported(state: dict[str, Tensor], bits: int, parameter: Tensor) -> dict[str, Any]:
        others: dict[str, Any] = {"step": state["step"].clone()}
        for moment in MOMENTS.values():
            if not set(names_of(moment)) & state.keys():
                continue
            values = floats_of(state, moment, bits, local(parameter).shape)
            values = values if has_codes(state, moment) else values.clone()
            others[moment] = as_shard(values, parameter) if is_sharded(parameter) else values
        return others

    return _exported(optimizer, exported, {}, set(OWN_OPTIONS))


# ---- from bitsandbytes


def _imported(state: dict[str, Any]) -> dict[str, Any]:
    if not state:
        return {}  # of a parameter that has made no step
    state = _without(state, {NESTED}) | state.get(NESTED, {})
    ours = {"step": state.get("step")}
    for number, moment in MOMENTS.items():
        values = state.get(f"state{number}")
        if values is None:
            continue
        _require_rows(values, moment)
        floats, codes, scales = names_of(moment)
        if values.dtype != torch.uint8:
            ours[floats] = values
            continue
        _require_our_map(state.get(f"qmap{number}"), moment)
        ours |= {codes: values, scales: _scales_of(state.get(f"absmax{number}"), values.numel())}
    if "exp_avg" not in ours and "exp_avg_codes" not in ours:
        raise ValueError(
            f"[optim.from_bitsandbytes] expected the state of Adam, AdamW or Lion with a state1, got "
            f"{', '.join(map(str, state))}"
        )
    return ours


def _require_our_map(table: Tensor | None, moment: str) -> None:
    if table is None or not torch.allclose(table.float().cpu(), _map_of(moment), rtol=1e-5, atol=1e-9):
        raise ValueError(
            f"[optim.from_bitsandbytes] the codes of {moment} are not of bitsandbytes' dynamic map: only those have a "
            f"counterpart here"
        )


def _require_rows(values: Tensor, moment: str) -> None:
    """Raises ValueError for a state in another order than rows: bitsandbytes gives it the strides of the parameter, and
    its GPU kernels use memory in the order of addresses, beside a parameter that they have made contiguous."""
    if not values.is_contiguous():
        raise ValueError(
            f"[optim.from_bitsandbytes] the {moment} of a {tuple(values.shape)} parameter has strides "
            f"{values.stride()}, and does not say in which order bitsandbytes has used its memory: if on a GPU, as "
            f"rows, then give values.as_strided(values.shape, torch.empty(values.shape).stride()); if by indices, "
            f"as on the CPU, values.contiguous()"
        )


def _scales_of(absmax: Tensor | None, count: int) -> Tensor:
    if absmax is not None and absmax.numel() == blocks_of(count, 8):
        return absmax
    if absmax is not None and absmax.numel() == -(-count // OLD_BLOCK):
        return absmax.repeat_interleave(OLD_BLOCK // BLOCK[8])[: blocks_of(count, 8)]
    raise ValueError(
        f"[optim.from_bitsandbytes] expected an absmax for each block of {BLOCK[8]} or {OLD_BLOCK} of {count} codes, "
        f"got {'none' if absmax is None else absmax.numel()}: tensor-wise 8-bit states are not supported"
    )


# ---- to others


def _fused(name: str, optimizer: Any) -> FusedOptimizer:
    """Returns the optimizer itself, for the function ``name``. Raises TypeError for one whose states have no form of
    other libraries."""
    optimizer = unwrapped(optimizer)
    if not isinstance(optimizer, FusedOptimizer):
        raise TypeError(
            f"[optim.{name}] expected an Adam, AdamW or Lion of octavo.optim, in any number of bits, got a "
            f"{type(optimizer).__name__}"
        )
    return optimizer


def _codes_of_8_bits(state: dict[str, Tensor], moment: str, bits: int, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """Returns 8-bit codes, and scales whose signs no longer count. Where a scale is negative its block is mirrored:
    code 127 + n becomes 127 - n, and the code of 1, which would become -1, becomes the least code."""
    _, codes, scales = (state.get(name) for name in names_of(moment))
    count = shape.numel()
    if bits != 8:
        values = floats_of(state, moment, bits, shape)
        codes = torch.empty(shape, dtype=torch.uint8, device=values.device)
        scales = torch.empty(blocks_of(count, 8), dtype=torch.float32, device=values.device)
        torch.ops.octavo.encode_state_(values, codes, scales, 8, IS_SIGNED[moment])
    is_mirrored = (scales < 0).repeat_interleave(BLOCK[8])[:count].view(shape)
    mirrored = 254 - codes.clamp(max=254)
    return torch.where(is_mirrored, mirrored, codes), scales


def _map_of(moment: str) -> Tensor:
    """Returns the values of all 256 codes, float32 on the CPU."""
    codes, scale = torch.arange(256, dtype=torch.uint8, device="cpu"), torch.ones(1, dtype=torch.float32, device="cpu")
    return torch.ops.octavo.decode_state(codes, scale, 256, 8, IS_SIGNED[moment])


def _exported(
    optimizer: FusedOptimizer,
    exported: Callable[..., dict[str, Any]],
    defaults: dict[str, Any],
    unwanted: set[str],
) -> dict[str, Any]:
    """Returns a state dict with ``exported(state, bits of codes, parameter)`` of each parameter that has a state, and
    the groups without the ``unwanted`` options, which the other library does not have. Raises RuntimeError in a forked
    process, as ``state_dict()`` does, where states are in files that the parent writes to."""
    optimizer._maker.memory.require_own_process()
    states: dict[int, dict[str, Any]] = {}
    groups: list[dict[str, Any]] = []
    numbers = itertools.count()  # not those of state_dict(), which hooks of the program may have changed
    for group in optimizer.param_groups:
        keys = [next(numbers) for _ in group["params"]]
        groups.append(group | {"params": keys})
        for key, parameter in zip(keys, group["params"], strict=True):
            if optimizer.state.get(parameter):
                states[key] = exported(optimizer.state[parameter], group["optim_bits"], parameter)
    return {"state": states, "param_groups": [defaults | _without(group, unwanted) for group in groups]}


def _without(names: dict[str, Any], unwanted: Any) -> dict[str, Any]:
    return {name: value for name, value in names.items() if name not in unwanted}
