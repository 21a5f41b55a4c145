# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of an engine, by ``torch.distributed.checkpoint``: parameters and the optimizer's states as flat
DTensors, which any number of ranks can load, whatever the stage.

Their keys: parameters/NAME, module/NAME (buffers, and what needs no gradient), shapes (those of the parameters, by
name; older checkpoints lack them), optimizer/NAME/KEY, groups, residuals/RANK/KEY, about/RANK.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, TensorStorageMetadata

from octavo.optim.checks import require_same_kind
from octavo.optim.shards import is_sharded
from octavo.parameters import plain_name, saved_buffers
from octavo.rendezvous import broadcast_from_rank_0
from octavo.zero.all_or_none import described, error_of, on_all_ranks
from octavo.zero.checkpoint_folder import CheckpointFolder
from octavo.zero.optimizer_state import load_states, options_of, parameters_by_name, parts_by_name, states_by_name

if TYPE_CHECKING:
    from octavo.zero.engine import ZeroEngine
    from octavo.zero.parts import OwnPart
    from octavo.zero.peers import Peers

_OF_RANKS = ("residuals", "about")


def save(engine: ZeroEngine, directory: Path, peers: Peers) -> None:
    """Does what ``ZeroEngine.save_checkpoint`` does. Each rank has buffers of its own; they become those of the first
    rank, on all ranks, so that a resumed run goes on as this one does."""
    where, what = "zero.save_checkpoint", f"write to {directory}"
    _require_numpy(where)
    with CheckpointFolder(directory, peers, where).writing() as folder:
        broadcast_from_rank_0(saved_buffers(engine.module).values(), peers.group)
        state = on_all_ranks(lambda: _state_of(engine, peers.rank), where, what, peers)
        with _errors_of_all(where, what):
            dcp.save(state, checkpoint_id=folder, process_group=peers.group)  # syncs its files


def load(engine: ZeroEngine, directory: Path, peers: Peers) -> None:
    """Does what ``ZeroEngine.load_checkpoint`` does."""
    where, what = "zero.load_checkpoint", f"read the checkpoint in {directory}"
    _require_numpy(where)
    folder = CheckpointFolder(directory, peers, where)
    folder.require_whole()  # before anything is read of it
    newest = folder.newest
    saved = on_all_ranks(lambda: _saved_of_this_model(engine, newest, peers), where, what, peers)
    is_text = {key: isinstance(entry, BytesStorageMetadata) for key, entry in saved.items()}
    texts = {key: None for key in saved if is_text[key]}
    with _errors_of_all(where, what):
        dcp.load(texts, checkpoint_id=newest, process_group=peers.group)
    _require_these_shapes(engine, json.loads(texts.get("shapes", "{}")))
    options = json.loads(texts["groups"])
    require_same_kind(engine.optimizer, options, where)  # before anything changes
    parts = parts_by_name(engine)
    try:
        engine.optimizer.state.clear()  # otherwise old and new states are in memory at once
        tensors = _in_place(engine, parts)
        tensors |= {key: _room_for(parts, key, saved[key]) for key in saved if not is_text[key] and key not in tensors}
        with torch.no_grad(), _errors_of_all(where, what):
            dcp.load(tensors, checkpoint_id=newest, process_group=peers.group)

        def take() -> None:
            load_states(engine, _states_in(texts | tensors), options)
            engine.handle.load_state_dict(_exchanges_in(texts, tensors))

        on_all_ranks(take, where, what, peers)
        engine.take_own_parts()
    except BaseException as error:
        engine.fail(error)
        raise


@contextmanager
def _errors_of_all(where: str, what: str) -> Iterator[None]:
    """A context for calls of torch.distributed.checkpoint, which tells all ranks of an error of one of them. Its own
    exception is none that `except Exception` catches."""
    try:
        yield
    except dcp.CheckpointException as error:
        raise error_of({rank: described(one) for rank, (one, _) in error.failures.items()}, where, what) from error


def _saved_of_this_model(engine: ZeroEngine, newest: Path, peers: Peers) -> dict[str, Any]:
    saved = _for_this_rank(dcp.FileSystemReader(newest).read_metadata().state_dict_metadata, peers)
    _require_this_model(engine, saved)
    return saved


def _for_this_rank(saved: dict[str, Any], peers: Peers) -> dict[str, Any]:
    """Returns what this rank is to load. On as many ranks as have saved, each rank loads only its own part of what
    exchanges remember."""
    ranks = sum(key.startswith("about/") for key in saved)
    if ranks != peers.size:
        return saved

    def is_of_another(key: str) -> bool:
        kind, _, rest = key.partition("/")
        return kind in _OF_RANKS and rest.partition("/")[0] != str(peers.rank)

    return {key: what for key, what in saved.items() if not is_of_another(key)}


def _require_numpy(where: str) -> None:
    if find_spec("numpy") is None:
        raise ImportError(
            f"[{where}] torch.distributed.checkpoint needs NumPy, which is not installed: pip install numpy, or write "
            f"only the parameters by export_safetensors(), which does not need it"
        )


def _others(engine: ZeroEngine, parts: dict[str, OwnPart]) -> dict[str, Tensor]:
    frozen = {plain_name(name): p.data for name, p in engine.module.named_parameters() if plain_name(name) not in parts}
    return frozen | saved_buffers(engine.module)


def _in_place(engine: ZeroEngine, parts: dict[str, OwnPart]) -> dict[str, Any]:
    """Returns the tensors of the model by their keys in the checkpoint, in their own memory."""
    state: dict[str, Any] = {f"parameters/{name}": part.values.data for name, part in parts.items()}
    return state | {f"module/{name}": tensor for name, tensor in _others(engine, parts).items()}


def _state_of(engine: ZeroEngine, rank: int) -> dict[str, Any]:
    state = _in_place(engine, parts_by_name(engine))
    for name, of_one in states_by_name(engine).items():
        for key, value in of_one.items():
            if isinstance(value, Tensor) and value.ndim > 0 and not is_sharded(value):
                raise ValueError(
                    f"[zero.save_checkpoint] the optimizer keeps {key} of {name} as {tuple(value.shape)}, which cannot "
                    f"be shared out between ranks: keep numbers, or tensors of the parameter's shape"
                )
            state[f"optimizer/{name}/{key}"] = value
    # as texts: torch.distributed.checkpoint would take a list apart
    state["groups"] = _text_of(options_of(engine.optimizer))
    state["shapes"] = json.dumps(_shapes_of(engine))
    about = {}
    for key, value in engine.handle.state_dict().items():
        if isinstance(value, Tensor):
            state[f"residuals/{rank}/{key}"] = value
        else:
            about[key] = value
    state[f"about/{rank}"] = json.dumps(about)
    return state


def _text_of(options: list[dict[str, Any]]) -> str:
    """Returns the options as JSON. Raises ValueError for an option that JSON does not have."""

    def number(value: Any) -> float:
        if hasattr(value, "item"):  # a tensor or a number of NumPy's
            return value.item()  # for one element
        raise TypeError

    for group in options:
        for name, value in group.items():
            try:
                json.dumps(value, default=number)
            except (TypeError, ValueError, RuntimeError) as error:
                raise ValueError(
                    f"[zero.save_checkpoint] the optimizer's option {name} is {value!r}: checkpoints keep only "
                    f"numbers, texts and lists of them"
                ) from error
    return json.dumps(options, default=number)


def _require_this_model(engine: ZeroEngine, saved: dict[str, Any]) -> None:
    ours = {key: (tensor.shape, tensor.dtype) for key, tensor in _in_place(engine, parts_by_name(engine)).items()}
    theirs = {
        key: (entry.size, entry.properties.dtype)
        for key, entry in saved.items()
        if key.startswith(("parameters/", "module/"))
    }
    for key in sorted(ours.keys() | theirs.keys()):  # all ranks name the same one
        if ours.get(key) != theirs.get(key):
            _require_as_trained(key.partition("/")[2], ours, theirs)
            raise ValueError(
                f"[zero.load_checkpoint] this is the checkpoint of another model: it has {_kind_of(theirs.get(key))} "
                f"for {key.partition('/')[2]}, this model {_kind_of(ours.get(key))}; nothing has changed"
            )


def _require_as_trained(name: str, ours: Container[str], theirs: Container[str]) -> None:
    """Raises ValueError where a parameter is trained in one of the model and the checkpoint, and frozen in the other.
    Both are given by their keys."""
    trained, frozen = f"parameters/{name}", f"module/{name}"
    for one, other, how in (
        (theirs, ours, "was trained in the checkpoint and is frozen here"),
        (ours, theirs, "was frozen in the checkpoint and is trained here"),
    ):
        if trained in one and frozen in other:
            raise ValueError(
                f"[zero.load_checkpoint] {name} {how}: give octavo.initialize a model that trains the same parameters "
                f"as the checkpoint, or load only weights, from a file of export_safetensors(), before "
                f"octavo.initialize; nothing has changed"
            )


def _shapes_of(engine: ZeroEngine) -> dict[str, list[int]]:
    return {name: list(p.shape) for name, p in parameters_by_name(engine).items()}


def _require_these_shapes(engine: ZeroEngine, saved: dict[str, list[int]]) -> None:
    """Raises ValueError where the checkpoint has a parameter in another shape of as many elements."""
    for name, shape in sorted(_shapes_of(engine).items()):
        theirs = saved.get(name, shape)
        if theirs != shape:
            raise ValueError(
                f"[zero.load_checkpoint] this is the checkpoint of another model: it has {tuple(theirs)} as the shape "
                f"of {name}, this model {tuple(shape)}; nothing has changed"
            )


def _kind_of(tensor: tuple[torch.Size, torch.dtype] | None) -> str:
    if tensor is None:
        return "nothing"
    shape, dtype = tensor
    return f"{str(dtype).removeprefix('torch.')} of {tuple(shape)}"


def _room_for(parts: dict[str, OwnPart], key: str, saved: TensorStorageMetadata) -> Tensor:
    """Returns a tensor to load a saved state to. It is cut as its parameter is, where it has as many elements."""
    part = parts.get(key.partition("/")[2].rpartition("/")[0])
    if part is not None and saved.size == part.values.shape:
        return torch.zeros_like(part.values.data, dtype=saved.properties.dtype)
    return torch.zeros(saved.size, dtype=saved.properties.dtype, device="cpu")


def _states_in(tensors: dict[str, Any]) -> dict[str, dict[str, Any]]:
    states: dict[str, dict[str, Any]] = {}
    for key, value in tensors.items():
        kind, _, rest = key.partition("/")
        if kind == "optimizer":
            name, _, own_key = rest.rpartition("/")
            states.setdefault(name, {})[own_key] = value
    return states


def _exchanges_in(texts: dict[str, Any], tensors: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns what the exchanges of the ranks that saved have remembered, in the order of ranks, as far as it was
    loaded."""
    by_rank = {
        int(key.partition("/")[2]): json.loads(about) for key, about in texts.items() if key.startswith("about/")
    }
    for key, value in tensors.items():
        kind, _, rest = key.partition("/")
        if kind == "residuals":
            rank, _, own_key = rest.partition("/")
            by_rank[int(rank)][own_key] = value
    return [by_rank[rank] for rank in sorted(by_rank)]
