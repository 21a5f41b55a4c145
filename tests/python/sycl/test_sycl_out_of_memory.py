# SPDX-License-Identifier: Apache-2.0
"""Steps of 1-bit optimizers that find no memory: they change nothing, and can be made again."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from octavo.optim import AdamW8bit, OneBitAdamW, OneBitLamb, ZeroOneAdam

MIB = 1 << 20
SIZES = (128 * 1024, 1024 * 1024)
OPTIMIZERS = {
    "zero-one-adam": lambda p: ZeroOneAdam(
        [dict(params=p[:1], weight_decay=0.0), dict(params=p[1:])],
        lr=1e-2,
        var_freeze_step=8,
        local_step_clipper=4,
        local_step_scaler=4,
        var_update_scaler=2,
    ),
    "onebit-lamb": lambda p: OneBitLamb(p, lr=1e-2, warmup_steps=20),
    # what follows makes the step of one parameter after another
    "onebit-lamb, frozen": lambda p: OneBitLamb(p[1:], lr=1e-2, warmup_steps=4),
    "onebit-adamw": lambda p: OneBitAdamW(p[1:], lr=1e-2, warmup_steps=6),
}


def snapshot(parameters: list[Tensor], optimizer: Optimizer) -> dict[str, Any]:
    values: dict[str, Any] = {f"parameter {i}": p.detach().cpu().clone() for i, p in enumerate(parameters)}
    for i, parameter in enumerate(parameters):
        for name, value in optimizer.state[parameter].items():
            values[f"{name} {i}"] = value.cpu().clone() if isinstance(value, Tensor) else value
    return values | {"steps": optimizer.param_groups[0].get("steps")}


def differing(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    def is_same(a: Any, b: Any) -> bool:
        return torch.equal(a, b) if isinstance(a, Tensor) else a == b

    return [name for name, value in before.items() if name not in now or not is_same(value, now[name])]


def train(
    make: Callable[[list[Tensor]], Optimizer], dtype: torch.dtype, spare_mib: tuple[int, ...]
) -> tuple[dict[str, Any], int]:
    """Makes steps, and before each of them one under each limit. Returns what is there in the end, and how many steps
    found no memory."""
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(size).to(dtype).to("sycl")) for size in SIZES]
    optimizer, refused = make(parameters), 0
    for step in range(12):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape).to(dtype).to("sycl")
        is_made = False
        for spare in spare_mib:
            before = snapshot(parameters, optimizer)
            gc.collect()
            torch.sycl.synchronize()
            torch.sycl.empty_cache()
            torch.sycl.set_memory_limit(torch.sycl.memory_reserved() + spare * MIB)
            try:
                optimizer.step()
                is_made = True
                break
            except torch.OutOfMemoryError:
                refused += 1
            finally:
                torch.sycl.set_memory_limit(None)
            assert not (changed := differing(before, snapshot(parameters, optimizer))), (step, spare, changed)
        if not is_made:
            optimizer.step()
    return snapshot(parameters, optimizer), refused


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_step_without_memory_changes_nothing(name: str, dtype: torch.dtype) -> None:
    whole, none_refused = train(OPTIMIZERS[name], dtype, ())
    limited, refused = train(OPTIMIZERS[name], dtype, (0, 1, 3, 5, 9))
    assert none_refused == 0
    assert refused > 5
    assert not differing(whole, limited)


def stepped_in_groups(spare_mib: int | None) -> tuple[dict[str, Any], bool]:
    """Makes a step of two groups, of which the second one needs copies of what lies in another memory order. Returns
    what is there then, and whether there was memory."""
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(1024, 256).to("sycl")), nn.Parameter(torch.randn(512, 2048).to("sycl"))]
    optimizer = AdamW8bit([dict(params=[p]) for p in parameters], lr=1e-2, min_8bit_size=0)
    for other_order in (False, True):  # the first step makes the states
        parameters[0].grad = torch.randn(1024, 256).to("sycl")
        parameters[1].grad = torch.randn(2048, 512).to("sycl").t() if other_order else torch.randn(512, 2048).to("sycl")
        if not other_order:
            optimizer.step()
    before = snapshot(parameters, optimizer)
    gc.collect()
    torch.sycl.synchronize()
    torch.sycl.empty_cache()
    if spare_mib is not None:
        torch.sycl.set_memory_limit(torch.sycl.memory_reserved() + spare_mib * MIB)
    try:
        optimizer.step()
    except torch.OutOfMemoryError:
        return {name: None for name in differing(before, snapshot(parameters, optimizer))}, False
    finally:
        torch.sycl.set_memory_limit(None)
    return snapshot(parameters, optimizer), True


def test_a_step_of_several_groups_without_memory_for_the_last_changes_nothing() -> None:
    changed, was_made = stepped_in_groups(1)
    assert not was_made and not changed
    assert stepped_in_groups(None)[1]
