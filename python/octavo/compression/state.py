# SPDX-License-Identifier: Apache-2.0
"""The form of what ``Handle.state_dict`` returns, and the checks of what ``Handle.load_state_dict`` is given."""

from collections.abc import Iterable, Mapping, Sequence
from json import JSONDecodeError, loads

import torch
from torch import Tensor

from octavo._C import CompressorState
from octavo.arguments import is_finite_number, is_whole_number, require_ranks, require_seed

State = Mapping[str, Tensor | int | float | str]

SCHEMA = 3
#: What is kept of values as they are. Other tensors may have codes, also in memory of floats.
_VALUES = (
    *("worker", "owner", "own", "residual", "momentum", "update", "velocity", "owed", "owed_to_all"),
    *("sent_estimate", "received_estimates", "shared_estimate"),
)
#: What states cover where ranks hold copies of the whole model. A handle refuses states that cover something else.
WHOLE_MODEL = "the model"


def states_of_one_run(state: State | Sequence[State], covers: str) -> list[State]:
    """Returns those states that a handle can read that ``covers`` this, out of what ``Handle.load_state_dict`` was
    given. They are states of different ranks of one world. Raises what ``load_state_dict`` raises for states that do
    not fit."""
    states = [state] if isinstance(state, Mapping) else list(state) if isinstance(state, Iterable) else []
    if not states or not all(isinstance(one, Mapping) for one in states):
        raise TypeError("[handle.load_state_dict] pass what state_dict() returned, on this rank or on all ranks")
    schemas = {repr(one.get("schema")) for one in states}
    if schemas != {repr(SCHEMA)}:
        raise ValueError(
            f"[handle.load_state_dict] this version of Octavo reads states of schema {SCHEMA}, this one has "
            f"{', '.join(sorted(schemas))}: start with an empty state"
        )
    covered = {str(one.get("layout", WHOLE_MODEL)) for one in states}
    states = [one for one in states if one.get("layout", WHOLE_MODEL) == covers]
    if not states:
        raise ValueError(
            f"[handle.load_state_dict] these are residuals of {', '.join(sorted(covered))}, and this handle keeps "
            f"those of {covers}: load the states of a model that was wrapped and sharded as this one is, or start with "
            f"an empty state"
        )
    for one in states:
        _require_complete(one)
    ranks, sizes = [int(one["rank"]) for one in states], {int(one["world_size"]) for one in states}
    if len(sizes) == 1:
        require_ranks(ranks, *sizes, "handle.load_state_dict")
    if len(sizes) > 1 or (len(ranks) > 1 and {len(ranks)} != sizes):
        raise ValueError(
            f"[handle.load_state_dict] expected the states of all ranks of one world, got ranks {sorted(ranks)} of "
            f"worlds of {', '.join(map(str, sorted(sizes)))} ranks"
        )
    for key in ("seed", "step"):
        found = {int(one.get(key, 0)) for one in states}
        if len(found) > 1:
            raise ValueError(
                f"[handle.load_state_dict] expected states that the ranks of one run saved together, got those of the "
                f"{key}s {', '.join(map(str, sorted(found)))}"
            )
    return states


def _require_complete(state: State) -> None:
    """Raises ValueError where the state lacks something that ``Handle.state_dict`` returned on its rank."""
    for key in ("plan", "rank", "world_size", "step", "of_momenta"):
        if key not in state:
            raise ValueError(f"[handle.load_state_dict] the state has no {key!r}: pass what state_dict() returned")
    if not isinstance(state["of_momenta"], (bool, int)):
        raise ValueError(
            f"[handle.load_state_dict] expected 'of_momenta' of the state as True or False, got "
            f"{state['of_momenta']!r}: pass what state_dict() returned"
        )
    for key in ("rank", "world_size", "step", "unclipped_steps", "tensors"):
        if not (is_whole_number(state.get(key, 0)) and 0 <= state.get(key, 0) < 2**63):
            raise ValueError(
                f"[handle.load_state_dict] expected {key!r} of the state as a whole number of 0 or more, got "
                f"{state[key]!r}: pass what state_dict() returned"
            )
    for key, tensor in tensors_of(state).items():
        if tensor.is_meta:
            raise ValueError(
                f"[handle.load_state_dict] {key!r} of the state is on the device meta, which has no values: pass what "
                f"state_dict() returned"
            )
        is_of_values = key.partition("/")[0] in _VALUES and tensor.is_floating_point()
        if is_of_values and not torch.isfinite(tensor).all():
            raise ValueError(
                f"[handle.load_state_dict] {key!r} of the state of rank {state['rank']} has a NaN or an infinity, "
                f"which would spread to every later step: continue from an older state"
            )
    require_seed(state.get("seed", 0), "handle.load_state_dict")
    share = state.get("usual_share", 0.0)
    if not (is_finite_number(share) and 0 <= share <= 1):
        raise ValueError(
            f"[handle.load_state_dict] expected 'usual_share' of the state as a number from 0 to 1, got {share!r}: "
            f"pass what state_dict() returned"
        )
    if len(tensors_of(state)) < state.get("tensors", 0):
        raise ValueError(
            f"[handle.load_state_dict] the state of rank {state['rank']} has {len(tensors_of(state))} of its "
            f"{state['tensors']} tensors: torch.distributed.checkpoint loads only tensors that already exist, and a "
            f"new handle has none; save it by torch.save"
        )


def tensors_of(state: State) -> dict[str, Tensor]:
    return {key: value for key, value in state.items() if isinstance(value, Tensor)}


def compressor_state_of(state: State) -> CompressorState:
    return CompressorState(
        tensors=tensors_of(state),
        of_momenta=bool(state["of_momenta"]),
        step=int(state["step"]),
        seed=int(state.get("seed", 0)),
        usual_factor=float(state.get("usual_share", 0.0)),
        unclipped_steps=int(state.get("unclipped_steps", 0)),  # states of older versions have none
    )


def memory_orders_in(state: State) -> dict[str, object]:
    """Returns the memory orders (``octavo.parameters.memory_orders``) that a state was saved with."""
    text = state.get("memory_orders", "{}")
    try:
        orders = loads(text)
    except (TypeError, JSONDecodeError):
        orders = None
    if not isinstance(orders, dict):
        raise ValueError(
            f"[handle.load_state_dict] expected 'memory_orders' of the state as JSON, got {text!r}: pass what "
            f"state_dict() returned"
        )
    return orders
