# SPDX-License-Identifier: Apache-2.0
"""Finds what shares memory without being one parameter, and would not be trained as one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from octavo.zero.config import ZeroConfig

_ONE_PARAMETER = "make them one parameter, by assigning the parameter of one module to the other"


class _Place(NamedTuple):
    """Where a parameter or a buffer is in memory: the addresses of its first byte, and of the byte after its last
    one. What strides leave out between them counts as its own."""

    device: str
    first: int
    end: int
    name: str
    dtype: torch.dtype
    kind: str  # "trained", "frozen" or "buffer"

    @property
    def is_trained(self) -> bool:
        return self.kind == "trained"


def require_apart(model: nn.Module, config: ZeroConfig) -> None:
    """Raises ValueError for what shares memory, and would be trained in another way than without ZeRO.

    - In stage 3 a trained parameter gets other memory, and what shared its memory keeps the old values.
    - With ``gather`` a rank has its part of each trained parameter in other memory. They would become different.
    - Otherwise ranks own other elements of the memory by each of two trained parameters, unless they are the same.
    """
    places = sorted(_places_in(model))
    if config.zero_stage == 3:
        for one, other in _overlaps(places):
            _refuse(one, other, f"which stage 3 would separate: {_advice(one, other)}")
    for one, other in _overlaps([place for place in places if place.is_trained]):
        if config.has_parts_apart:
            _refuse(one, other, f"which gather would separate: {_advice(one, other)}")
        elif not _are_same(one, other):
            _refuse(one, other, f"but ranks would own different elements where they overlap: {_ONE_PARAMETER}")


def _refuse(one: _Place, other: _Place, why: str) -> None:
    raise ValueError(f"[zero.initialize] {one.name} and {other.name} share memory, {why}")


def _advice(one: _Place, other: _Place) -> str:
    kinds = {one.kind, other.kind}
    if "buffer" in kinds:
        return "let modules read the parameter in place of the buffer, or use stage 1 or 2"
    if "frozen" in kinds:
        return f"{_ONE_PARAMETER}, or use stage 1 or 2"
    return f"{_ONE_PARAMETER}{', or use stage 1 or 2 without gather' if _are_same(one, other) else ''}"


def _are_same(one: _Place, other: _Place) -> bool:
    """Whether each rank owns the same bytes of both."""
    return (one.first, one.end, one.dtype) == (other.first, other.end, other.dtype)


def _places_in(model: nn.Module) -> Iterator[_Place]:
    for name, parameter in model.named_parameters():
        yield from _places_of(name, parameter, "trained" if parameter.requires_grad else "frozen")
    for name, buffer in model.named_buffers():
        yield from _places_of(name, buffer, "buffer")


def _places_of(name: str, tensor: Tensor, kind: str) -> Iterator[_Place]:
    first = tensor.data_ptr()
    if tensor.numel() == 0 or first == 0:  # it has no memory
        return
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    yield _Place(str(tensor.device), first, first + (last + 1) * tensor.element_size(), name, tensor.dtype, kind)


def _overlaps(places: list[_Place]) -> Iterator[tuple[_Place, _Place]]:
    """Yields pairs that overlap, of which at least one is trained. ``places``: by their first bytes."""
    furthest: dict[tuple[str, bool], _Place] = {}  # by device and whether it is trained: which ends last so far
    for place in places:
        for is_trained in (True, False) if place.is_trained else (True,):
            before = furthest.get((place.device, is_trained))
            if before is not None and place.first < before.end:
                yield before, place
        key = place.device, place.is_trained
        furthest[key] = max(furthest.get(key, place), place, key=lambda one: one.end)
