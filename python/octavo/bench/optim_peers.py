# SPDX-License-Identifier: Apache-2.0
"""Optimizers of other libraries that step on the CPU, as contenders. None of the libraries is required: one that is not
installed raises ImportError here and is left out of the measurement."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import typer
from torch.optim import Optimizer

Contenders = dict[str, Callable[[list[Any], float], Optimizer]]
"""By name, a function that makes the optimizer of parameters at a learning rate."""


@dataclass(frozen=True)
class Peer:
    """A library.

    - ``names``: those of its contenders, known without importing it.
    - ``load``: imports it and returns its contenders.
    """

    names: tuple[str, ...]
    load: Callable[[], Contenders]


def _bitsandbytes() -> Contenders:
    from bitsandbytes import optim

    return {name: _at_rate(getattr(optim, name.split()[-1])) for name in PEERS["bitsandbytes"].names}


def _torchao() -> Contenders:
    from torchao import optim

    return {name: _at_rate(getattr(optim, name.split()[-1])) for name in PEERS["torchao"].names}


def _deepspeed() -> Contenders:
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    typer.echo(
        "deepspeed CPUAdam: its first use compiles it, which takes minutes; where nothing happens another process does "
        "so, or has left a lock in the folder of torch's extensions",
        err=True,
    )
    return {"deepspeed CPUAdam": _at_rate(DeepSpeedCPUAdam)}  # AdamW, unless it is told otherwise


def _at_rate(kind: Callable[..., Optimizer]) -> Callable[[list[Any], float], Optimizer]:
    return lambda parameters, lr: kind(parameters, lr=lr)


def _names(library: str, *classes: str) -> tuple[str, ...]:
    return tuple(f"{library} {name}" for name in classes)


#: The libraries, by the name under which pip knows them.
PEERS: dict[str, Peer] = {
    "bitsandbytes": Peer(
        _names("bitsandbytes", "AdamW", "AdamW8bit", "PagedAdamW8bit", "Lion", "Lion8bit"), _bitsandbytes
    ),
    "torchao": Peer(_names("torchao", "AdamW8bit", "AdamW4bit"), _torchao),
    "deepspeed": Peer(_names("deepspeed", "CPUAdam"), _deepspeed),
}
