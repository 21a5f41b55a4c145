# SPDX-License-Identifier: Apache-2.0
"""Optimizers of other libraries that step on the CPU, as contenders. None of the libraries is required: one that is not
installed raises ImportError here and is left out of the measurement."""

from collections.abc import Callable
from typing import Any

import typer
from torch.optim import Optimizer

Contenders = dict[str, Callable[[list[Any], float], Optimizer]]
"""By name, a function that makes the optimizer of parameters at a learning rate."""


def _bitsandbytes() -> Contenders:
    from bitsandbytes import optim

    names = ("AdamW", "AdamW8bit", "PagedAdamW8bit", "Lion", "Lion8bit")
    return {f"bitsandbytes {name}": _at_rate(getattr(optim, name)) for name in names}


def _torchao() -> Contenders:
    from torchao import optim

    return {f"torchao {name}": _at_rate(getattr(optim, name)) for name in ("AdamW8bit", "AdamW4bit")}


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


#: The contenders of each library, by the name under which pip knows it.
PEERS: dict[str, Callable[[], Contenders]] = {
    "bitsandbytes": _bitsandbytes,
    "torchao": _torchao,
    "deepspeed": _deepspeed,
}
