# SPDX-License-Identifier: Apache-2.0
"""What ``octavo.initialize`` does where ``torch.compile`` is to put gathers and reductions into a model's graphs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from octavo import _C
from octavo.hooks import while_alive
from octavo.zero.compile_config import CompileConfig
from octavo.zero.config import ZeroConfig
from octavo.zero.parts import OwnPart
from octavo.zero.peers import Peers

if TYPE_CHECKING:
    from octavo.zero.compiled import Setting, ZeroCompiler


def compilable(config: ZeroConfig, compiled: CompileConfig, device_type: str, optimizer: Optimizer) -> Setting:
    """Returns what graphs are made for. Raises ValueError where they cannot be compiled, or where the config's schedule
    does not suit them."""
    from octavo.zero.compiled import Setting, require_compilable  # imports Inductor, which is slow
    from octavo.zero.compiled.on_host import paging_optimizer

    setting = Setting(
        stage=config.zero_stage,
        backend=compiled.backend,
        device=device_type,
        paged_by=paging_optimizer(optimizer),
        has_parts_apart=config.has_parts_apart,
    )
    require_compilable(compiled, setting)
    return setting


def compiled_model(
    model: nn.Module,
    engine: _C.Engine,
    parts: Mapping[nn.Parameter, OwnPart],
    transfer_bytes: int,
    compiled: CompileConfig,
    setting: Setting,
    optimizer: Optimizer,
    peers: Peers,
) -> tuple[Callable[..., Any], ZeroCompiler]:
    """Returns the model's forward pass, and what makes its graphs, which the caller must keep."""
    from octavo.zero.compiled import ZeroCompiler
    from octavo.zero.compiled.on_host import OnHost

    ids = {parameter: id for id, parameter in enumerate(parts)}
    on_host = OnHost(engine, {id: part.values for id, part in enumerate(parts.values())}, optimizer)
    compiler = ZeroCompiler(engine, ids, transfer_bytes, compiled, setting, on_host, peers)
    # Each engine has a backend of its own, and all engines of a model's class would share one limit of recompilations.
    has_own_limit = "isolate_recompiles" in inspect.signature(torch.compile).parameters  # since torch 2.13
    own_limit = {"isolate_recompiles": True} if has_own_limit else {}
    backend = while_alive(compiler.compile)
    return torch.compile(model, backend=backend, dynamic=compiled.dynamic, **own_limit), compiler
