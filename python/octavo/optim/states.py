# SPDX-License-Identifier: Apache-2.0
"""Makes what a fused optimizer keeps of a parameter, for its first step or from what was saved, and decides in which
memory it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from octavo.arguments import is_number
from octavo.optim.shards import as_shard, has_whole_rows, is_sharded, local
from octavo.optim.state_arenas import StateArenas
from octavo.optim.state_formats import (
    BLOCK,
    IS_SIGNED,
    NESTED,
    blocks_of,
    code_shape,
    floats_of,
    has_codes,
    is_fitting,
    keep_floats,
    kept_scales,
    names_of,
)


class StateMaker:
    """Makes the states of an optimizer's parameters as their groups say, in ordinary memory or in managed memory."""

    def __init__(self, owner: str, moments: tuple[str, ...], page_dir: str | None):
        self.memory = StateArenas(owner, page_dir)
        self._owner = owner  # the name of the optimizer's class, for errors
        self._moments = moments

    def first(self, group: dict[str, Any], parameter: Tensor) -> dict[str, Tensor]:
        """Returns the state of a parameter that has made no step. For a DTensor it is the state of this rank's shard;
        it is in codes where the whole tensor is large enough for codes, so that the format does not depend on the
        number of ranks."""
        bits, parameter = self._bits_of(group, parameter), local(parameter)
        state: dict[str, Tensor] = {"step": torch.zeros((), dtype=torch.float32, device="cpu")}
        for moment in self._moments:
            state |= self._zero_moment(group, parameter, moment, bits)
        self.fit_extra_bits(group, parameter, state)
        return state

    def fit_extra_bits(self, group: dict[str, Any], parameter: Tensor, state: dict[str, Tensor]) -> None:
        """Adds ``extra_bits``, zeros, to a state whose group asks for them and whose parameter is in bfloat16;
        otherwise removes them."""
        if group["bf16_rounding"] != "extra_bits" or parameter.dtype != torch.bfloat16:
            state.pop("extra_bits", None)
        elif "extra_bits" not in state:
            state["extra_bits"] = self._zeros_like(group, local(parameter), torch.int8)

    def restored(self, group: dict[str, Any], parameter: Tensor, saved: Any, saved_bits: int) -> dict[str, Tensor]:
        """Makes the state of a parameter from a saved one, whose codes are of `saved_bits`. Moments in the group's
        format are copied, others are decoded, encoded or both. Raises ValueError for what is no state of such a
        parameter."""
        if not isinstance(saved, Mapping):
            raise ValueError(f"[optim.{self._owner}] expected a saved state by names, got {saved!r}")
        if not saved:
            return {}
        state = self.first(group, parameter)
        saved = {name: local(value) for name, value in saved.items()}
        self._require_names(saved)
        if not_found := [name for name, value in saved.items() if isinstance(value, dict)]:
            raise ValueError(
                f"[optim.{self._owner}] torch found no saved {', '.join(not_found)} for a parameter of "
                f"{tuple(parameter.shape)}: with flatten_optimizer_state_dict=True it asks for the names that "
                f"optimizer.state has, where this state is codes; load the same files with "
                f"flatten_optimizer_state_dict=False; nothing has changed"
            )
        state["step"].fill_(self._step_of(saved))
        for moment in self._moments:
            self._restore_moment(state, saved, moment, local(parameter).shape, (group["optim_bits"], saved_bits))
        if "extra_bits" in saved and "extra_bits" in state:
            self._copy(state, saved, "extra_bits")
        return state

    def portable(self, group: dict[str, Any], parameter: Tensor, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns a state in the form of checkpoints, in the state's own memory where that is possible.

        For a DTensor the tensors are DTensors, which another number of ranks can load. Codes stay codes where each row
        of the parameter is whole blocks: then no block is on two ranks, whatever their number is. Otherwise they become
        the floats that they mean, from which the same codes come back. Which of the two it is does not depend on the
        number of ranks.
        """
        if not is_sharded(parameter) or not state:
            return state
        bits, shape = group["optim_bits"], local(parameter).shape
        row = parameter.shape[1:].numel()
        keeps_codes = parameter.ndim > 1 and has_whole_rows(parameter) and row % BLOCK.get(bits, 1) == 0
        parts: dict[str, Tensor] = {name: state[name] for name in ("extra_bits",) if name in state}
        for moment in self._moments:
            floats, codes, scales = names_of(moment)
            if has_codes(state, moment) and keeps_codes:
                parts[codes] = state[codes] if bits == 8 else state[codes].view(shape[0], row // 2)
                parts[scales] = state[scales].view(shape[0], row // BLOCK[bits])
            else:
                parts[floats] = floats_of(state, moment, bits, shape)
        return {"step": state["step"]} | {name: as_shard(part, parameter) for name, part in parts.items()}

    # ---- what is made

    def _zero_moment(self, group: dict[str, Any], parameter: Tensor, moment: str, bits: int) -> dict[str, Tensor]:
        """Returns a moment of zeros. As codes of any kind it has zeros as codes and 0 as scales."""
        floats, codes, scales = names_of(moment)
        if bits == 32:
            return {floats: self._zeros_like(group, parameter, torch.float32)}
        return {
            codes: self._zeros(group, parameter, code_shape(parameter.shape, bits), torch.uint8),
            scales: self._zeros(group, parameter, [blocks_of(parameter.numel(), bits)], torch.float32),
        }

    def _bits_of(self, group: dict[str, Any], parameter: Tensor) -> int:
        return 32 if parameter.numel() < max(group["min_8bit_size"], 1) else group["optim_bits"]

    def _zeros_like(self, group: dict[str, Any], parameter: Tensor, dtype: torch.dtype) -> Tensor:
        return self.memory.zeros_like(parameter, dtype, self._is_paged(group, parameter))

    def _zeros(self, group: dict[str, Any], parameter: Tensor, shape: list[int], dtype: torch.dtype) -> Tensor:
        return self.memory.zeros(shape, dtype, parameter.device, self._is_paged(group, parameter))

    def _is_paged(self, group: dict[str, Any], parameter: Tensor) -> bool:
        return group["is_paged"] and parameter.numel() >= max(group["min_paged_size"], 1)

    # ---- what was saved

    def _require_names(self, saved: dict[str, Any]) -> None:
        """Raises ValueError where the saved state has names that no state here has. Moments may be saved in any
        format."""
        if "max_exp_avg_sq" in saved:
            raise ValueError(
                f"[optim.{self._owner}] amsgrad is not supported, and the saved state has its max_exp_avg_sq: go on "
                f"with the optimizer that saved it, or leave max_exp_avg_sq out; nothing has changed"
            )
        known = {"step", "extra_bits"} | {name for moment in self._moments for name in names_of(moment)}
        if unknown := saved.keys() - known:
            advice = ""
            if unknown & {"state1", NESTED}:
                advice = "; translate the state of an optimizer of bitsandbytes by octavo.optim.from_bitsandbytes()"
            raise ValueError(
                f"[optim.{self._owner}] this is the state of another optimizer, or of one with other options: "
                f"{self._owner} has no {', '.join(sorted(unknown))}; nothing has changed{advice}"
            )

    def _step_of(self, saved: dict[str, Any]) -> float:
        step = saved.get("step")
        if is_number(step) and float(step) >= 0:
            return float(step)
        raise ValueError(
            f"[optim.{self._owner}] expected the saved step as a number of at least 0, got {_described(step)}; nothing "
            f"has changed"
        )

    def _restore_moment(
        self, state: dict[str, Tensor], saved: dict[str, Any], moment: str, shape: torch.Size, bits: tuple[int, int]
    ) -> None:
        own_bits, saved_bits = bits
        if not is_fitting(saved, moment, saved_bits, shape):
            raise ValueError(
                f"[optim.{self._owner}] expected the saved {moment} as floats {tuple(shape)} or as codes of "
                f"{saved_bits} bits with the scales of their blocks, got "
                f"{', '.join(f'{name} {_described(saved.get(name))}' for name in names_of(moment))}; nothing has "
                f"changed"
            )
        if has_codes(saved, moment) and has_codes(state, moment) and own_bits == saved_bits:
            _, codes, scales = names_of(moment)
            self._require_codable(moment, saved[scales])
            state[codes].copy_(saved[codes].view(state[codes].shape))
            state[scales].copy_(kept_scales(saved[scales]).view(state[scales].shape))
        else:
            floats = floats_of(saved, moment, saved_bits, shape)
            if has_codes(state, moment):
                self._require_codable(moment, floats)
            keep_floats(state, moment, own_bits, floats)

    def _require_codable(self, moment: str, values: Tensor) -> None:
        """Raises ValueError for values or scales that blocks of codes cannot have."""
        if not values.isfinite().all():
            raise ValueError(
                f"[optim.{self._owner}] the saved {moment} has values that are not finite, which would spoil all of "
                f"their blocks of codes: replace them, as by nan_to_num_(); nothing has changed"
            )
        if not IS_SIGNED[moment] and (values < 0).any():
            raise ValueError(
                f"[optim.{self._owner}] the saved {moment} has values below 0, and is a mean of squares; nothing has "
                f"changed"
            )

    def _copy(self, state: dict[str, Tensor], saved: dict[str, Any], name: str) -> None:
        own, value = state[name], saved[name]
        if not isinstance(value, Tensor) or value.shape != own.shape or value.dtype != own.dtype:
            raise ValueError(
                f"[optim.{self._owner}] expected the saved {name} as {_described(own)}, got {_described(value)}; "
                f"nothing has changed"
            )
        own.copy_(value)


def _described(value: Any) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
