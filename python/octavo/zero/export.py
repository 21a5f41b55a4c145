# SPDX-License-Identifier: Apache-2.0
"""Writes a model to one safetensors file, tensor by tensor: the whole model is never in memory at once.

The format (huggingface.co/docs/safetensors): eight bytes, a little-endian integer, with the length of the header; the
header, JSON with metadata and each tensor's dtype, shape and place in the data; the data.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from octavo import durable_files
from octavo.parameters import plain_name
from octavo.zero.all_or_none import require_none_failed

if TYPE_CHECKING:
    from octavo.zero.engine import ZeroEngine
    from octavo.zero.peers import Peers

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_MEETING_BYTES = 2**30
_WHERE = "zero.export_safetensors"
_ALIGNMENT = 8  # the data begin in the file at a multiple of this, in bytes


def export(engine: ZeroEngine, path: Path, peers: Peers) -> None:
    """Does what ``ZeroEngine.export_safetensors`` does."""
    named, tied = _without_ties(engine.module)
    header = _header(named, tied)
    failure: Exception | None = None
    left, whole = iter(named.values()), _gatherer(engine, peers)
    if peers.rank == 0:
        try:
            _write(path, header, map(whole, left))
        except Exception as error:
            failure = error
    for tensor in left:  # all ranks gather together: the others all of them, rank 0 the rest after an error
        try:
            whole(tensor)
        except Exception as error:
            failure = failure or error
    require_none_failed(failure, _WHERE, f"write {path}", peers)


def _gatherer(engine: ZeroEngine, peers: Peers) -> Callable[[Tensor], Tensor]:
    """Returns what makes the whole of a tensor, on all ranks together. They meet before the first one and then after
    each GiB: the file may take longer to write than a rank waits for another one."""
    unmet_bytes = _MEETING_BYTES

    def whole(tensor: Tensor) -> Tensor:
        nonlocal unmet_bytes
        if unmet_bytes >= _MEETING_BYTES:
            peers.values(None, _WHERE)
            unmet_bytes = 0
        unmet_bytes += tensor.nbytes
        return engine.whole(tensor)

    return whole


def _without_ties(module: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Returns the tensors of ``state_dict``, each under its first name; and for each of its other names the first one,
    as ``save_model`` of safetensors writes them."""
    named: dict[str, Tensor] = {}
    first: dict[Tensor, str] = {}
    tied = {}
    for name, tensor in ((plain_name(name), tensor) for name, tensor in module.state_dict(keep_vars=True).items()):
        if not isinstance(tensor, Tensor) or tensor.dtype not in _DTYPES:
            what = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise ValueError(
                f"[zero.export_safetensors] a safetensors file cannot hold {name}, which is {what}: register the "
                f"buffer with persistent=False, or use save_checkpoint"
            )
        kept = first.setdefault(tensor, name)
        if kept == name:
            named[name] = tensor
        else:
            tied[name] = kept
    return named, tied


def _write(path: Path, header: bytes, tensors: Iterator[Tensor]) -> None:
    with durable_files.replacing(path) as file:
        file.write(header)
        for tensor in tensors:
            file.write(_bytes_of(tensor))


def _header(named: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt", **metadata}}
    begin = 0
    for name, tensor in named.items():
        end = begin + tensor.numel() * tensor.dtype.itemsize
        entries[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _bytes_of(tensor: Tensor) -> bytearray:
    # without NumPy, which torch does not require
    memory = bytearray(tensor.nbytes)
    if memory:
        torch.frombuffer(memory, dtype=torch.uint8).copy_(tensor.detach().contiguous().view(-1).view(torch.uint8))
    return memory
