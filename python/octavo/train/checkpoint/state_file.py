# SPDX-License-Identifier: Apache-2.0
"""Nested state (dicts, lists, plain values, tensors) in one safetensors file: loading runs no code.

The tensors become the file's tensors, named by their path below a root name; the rest is JSON in the file's
metadata, where `{"tensor": name}` stands for a tensor and `{"dict": [[key, value], …]}` for a dict, so that integer
keys survive.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

Tensors = dict[str, torch.Tensor]
Keys = tuple[Any, ...]  # of dicts, and places in lists, which lead to a value


def pack(value: Any, root: str = "") -> tuple[Tensors, Any]:
    """Returns `value` as tensors named `root`/PATH and a skeleton for JSON. Raises TypeError for what neither can hold,
    and for two tensors whose paths give one name."""
    tensors: Tensors = {}
    return tensors, _pack(value, (root,) if root else (), tensors, {})


def unpack(tensors: Tensors, skeleton: Any) -> Any:
    """Returns the value that `pack` took apart."""
    if isinstance(skeleton, list):
        return [unpack(tensors, item) for item in skeleton]
    if not isinstance(skeleton, dict):
        return skeleton
    if "tensor" in skeleton:
        return tensors[skeleton["tensor"]]
    return {key: unpack(tensors, item) for key, item in skeleton["dict"]}


def save_tree(path: Path, value: Any, root: str = "") -> None:
    """Writes `value` to `path`, its tensors named below `root`. The caller fsyncs. Raises TypeError, OSError."""
    tensors, skeleton = pack(value, root)
    try:
        save_file(tensors, path, metadata={"tree": json.dumps(skeleton)})
    except SafetensorError as error:  # a full disk, for example
        raise OSError(f"[train.state_file] {path} cannot be written: {error}") from error


def load_tree(path: Path) -> Any:
    """Returns the value in `path`. Raises ValueError where `save_tree` did not write the file."""
    try:
        with safe_open(path, framework="pt") as file:
            skeleton = json.loads((file.metadata() or {})["tree"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        return unpack(tensors, skeleton)
    except (SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"[train.state_file] {path} is not a file of saved state: {error}") from error


def _pack(value: Any, keys: Keys, tensors: Tensors, keys_of: dict[str, Keys]) -> Any:
    """Does what `pack` does for what is below `keys`. `keys_of`: those of the tensors, by their names."""
    name = "/".join(map(str, keys))
    if isinstance(value, torch.Tensor):
        name = name or "value"
        if name in tensors:
            raise TypeError(
                f"[train.state_file] the keys {keys_of[name]} and {keys} of the state lead to two tensors of one name, "
                f"'{name}': rename one of them"
            )
        keys_of[name] = keys
        # It is copied, because safetensors refuses tensors that share memory, as views into one bucket do.
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(value, dict):
        return {"dict": [[key, _pack(item, (*keys, key), tensors, keys_of)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        return [_pack(item, (*keys, index), tensors, keys_of) for index, item in enumerate(value)]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(
        f"[train.state_file] the state at '{name}' is a {type(value).__name__}: only tensors and plain values can be "
        "saved"
    )
