# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of an engine, by ``torch.distributed.checkpoint``: parameters and the optimizer's states as flat
DTensors, which any number of ranks can load, whatever the stage."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, TensorStorageMetadata

if TYPE_CHECKING:
    from octavo.zero.engine import OwnPart, ZeroEngine

# Keys: parameters/NAME, module/NAME (buffers, and what needs no gradient), optimizer/NAME/KEY, groups,
# residuals/RANK/KEY, about/RANK.


def save(engine: ZeroEngine, directory: Path, group: dist.ProcessGroup) -> None:
    new = directory.with_name(f"{directory.name}.new")
    if group.rank() == 0:
        shutil.rmtree(new, ignore_errors=True)
    dist.barrier(group)
    dcp.save(_state_of(engine, group.rank()), checkpoint_id=new, process_group=group)
    dist.barrier(group)
    if group.rank() == 0:
        shutil.rmtree(directory, ignore_errors=True)
        new.rename(directory)
    dist.barrier(group)


def load(engine: ZeroEngine, directory: Path, group: dist.ProcessGroup) -> None:
    saved = dcp.FileSystemReader(directory).read_metadata().state_dict_metadata
    _require_this_model(engine, saved)
    parts = _parts(engine)
    state = {key: _room_for(parts, key, what) for key, what in saved.items()}
    dcp.load(state, checkpoint_id=directory, process_group=group)
    _load_optimizer(engine, state)
    _load_residuals(engine, state)
    with torch.no_grad():
        for name, part in parts.items():
            part.values.copy_(state[f"parameters/{name}"])
        for name, tensor in _others(engine).items():
            tensor.copy_(state[f"module/{name}"])


def _parts(engine: ZeroEngine) -> dict[str, OwnPart]:
    return {name: engine.parts[p] for name, p in engine.module.named_parameters() if p in engine.parts}


def _others(engine: ZeroEngine) -> dict[str, Tensor]:
    frozen = {name: p.data for name, p in engine.module.named_parameters() if p not in engine.parts}
    return frozen | dict(engine.module.named_buffers())


def _state_of(engine: ZeroEngine, rank: int) -> dict[str, Any]:
    state: dict[str, Any] = {f"parameters/{name}": part.values.data for name, part in _parts(engine).items()}
    state |= {f"module/{name}": tensor for name, tensor in _others(engine).items()}
    of_optimizer = engine.optimizer.state_dict()
    for place, name in enumerate(_names_in_order(engine)):
        for key, value in of_optimizer["state"].get(place, {}).items():
            state[f"optimizer/{name}/{key}"] = value
    groups = [{key: value for key, value in group.items() if key != "params"} for group in of_optimizer["param_groups"]]
    state["groups"] = json.dumps(groups)  # a list would be taken apart
    about = {}
    for key, value in engine.handle.state_dict().items():
        if isinstance(value, Tensor):
            state[f"residuals/{rank}/{key}"] = value
        else:
            about[key] = value
    state[f"about/{rank}"] = json.dumps(about)
    return state


def _names_in_order(engine: ZeroEngine) -> list[str]:
    """Of the optimizer's parameters."""
    names = {part.values: name for name, part in _parts(engine).items()}
    return [names[values] for group in engine.optimizer.param_groups for values in group["params"]]


def _require_this_model(engine: ZeroEngine, saved: dict[str, Any]) -> None:
    ours = {f"parameters/{name}": part.values.shape for name, part in _parts(engine).items()}
    ours |= {f"module/{name}": tensor.shape for name, tensor in _others(engine).items()}
    theirs = {key: what.size for key, what in saved.items() if key.startswith(("parameters/", "module/"))}
    for key in ours.keys() | theirs.keys():
        if ours.get(key) != theirs.get(key):
            raise ValueError(
                f"[zero.load_checkpoint] this is the checkpoint of another model: it has "
                f"{_described(theirs.get(key))} for {key.partition('/')[2]}, this model {_described(ours.get(key))}; "
                f"nothing has changed"
            )


def _described(shape: torch.Size | None) -> str:
    return "nothing" if shape is None else f"a tensor of {tuple(shape)}"


def _room_for(parts: dict[str, OwnPart], key: str, what: TensorStorageMetadata | BytesStorageMetadata) -> Any:
    """Where a saved value is loaded to: cut as its parameter is, if it has its elements."""
    if isinstance(what, BytesStorageMetadata):
        return None
    kind, _, rest = key.partition("/")
    name = rest if kind == "parameters" else rest.rpartition("/")[0]
    part = parts.get(name) if kind in ("parameters", "optimizer") else None
    if part is not None and what.size == part.values.shape:
        return torch.zeros_like(part.values.data, dtype=what.properties.dtype)
    return torch.zeros(what.size, dtype=what.properties.dtype)


def _load_optimizer(engine: ZeroEngine, state: dict[str, Any]) -> None:
    places = {name: place for place, name in enumerate(_names_in_order(engine))}
    states: dict[int, dict[str, Any]] = {}
    for key, value in state.items():
        kind, _, rest = key.partition("/")
        if kind == "optimizer":
            name, _, own_key = rest.rpartition("/")
            states.setdefault(places[name], {})[own_key] = value
    groups = engine.optimizer.state_dict()["param_groups"]
    saved_groups = json.loads(state["groups"])
    if len(groups) != len(saved_groups):
        raise ValueError(
            f"[zero.load_checkpoint] expected {len(groups)} parameter groups of the optimizer, got "
            f"{len(saved_groups)}; nothing has changed"
        )
    merged = [saved | {"params": group["params"]} for saved, group in zip(saved_groups, groups, strict=True)]
    engine.optimizer.load_state_dict({"state": states, "param_groups": merged})


def _load_residuals(engine: ZeroEngine, state: dict[str, Any]) -> None:
    by_rank = {
        int(key.partition("/")[2]): json.loads(about) for key, about in state.items() if key.startswith("about/")
    }
    for key, value in state.items():
        kind, _, rest = key.partition("/")
        if kind == "residuals":
            rank, _, own_key = rest.partition("/")
            by_rank[int(rank)][own_key] = value
    engine.handle.load_state_dict([by_rank[rank] for rank in sorted(by_rank)])
