# SPDX-License-Identifier: Apache-2.0
"""Adam, AdamW and Lion on the device `sycl`: the CPU's steps to within a unit of the last place and one code."""

from __future__ import annotations

import copy
import gc
import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from octavo import _C
from octavo.optim import Adam, AdamW, AdamW4bit, AdamW8bit, Lion8bit, PagedAdamW8bit

SHAPES = {
    "a ragged vector": lambda: torch.randn(4099),
    "transposed": lambda: torch.randn(67, 65).t(),
    "channels_last": lambda: torch.randn(9, 7, 5, 6).to(memory_format=torch.channels_last),
    "one": lambda: torch.randn(1),
    "a scalar": lambda: torch.randn(()),
    "nothing": lambda: torch.randn(0, 4),
}


def ordered(values: Tensor) -> Tensor:
    """Returns integers that differ by one where the floats are neighbours."""
    integer = torch.int32 if values.dtype == torch.float32 else torch.int16
    bits = values.detach().cpu().contiguous().view(integer).long()
    return bits.where(bits >= 0, torch.iinfo(integer).min - bits)


def near(here: Tensor, there: Tensor, name: str, bits: int) -> None:
    assert there.device.type == "sycl" and here.shape == there.shape and here.stride() == there.stride()
    if here.numel() == 0:
        return
    if here.dtype == torch.uint8:
        a, b = here.int(), there.cpu().int()
        pairs = [(a, b)] if bits == 8 else [(a // 16, b // 16), (a % 16, b % 16)]
        assert all((x - y).abs().max() <= 1 for x, y in pairs), name
    elif here.dtype == torch.int8:  # the extra bits
        assert (here.int() - there.cpu().int()).abs().max() <= 1 or (here.int() - there.cpu().int()).abs().max() >= 255
    else:
        assert (ordered(here) - ordered(there)).abs().max() <= 1, name


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rounding", ["nearest", "stochastic", "extra_bits"])
@pytest.mark.parametrize("make", [Adam, AdamW8bit, AdamW4bit, Lion8bit])
def test_a_step_is_the_cpus(make, rounding, shape) -> None:
    """Each of five steps begins from the same state on both devices, so that differences cannot add up."""
    torch.manual_seed(0)
    dtype = torch.float32 if rounding == "nearest" else torch.bfloat16
    here = nn.Parameter(SHAPES[shape]().to(dtype))
    there = nn.Parameter(here.detach().to("sycl"))
    options = {"lr": 1e-2, "weight_decay": 0.1, "min_8bit_size": 0, "bf16_rounding": rounding}
    first, second = make([here], **options), make([there], **options)
    for _ in range(5):
        here.grad = torch.randn(here.shape).to(dtype)
        there.grad = here.grad.to("sycl")
        first.step()
        second.step()
        assert (ordered(here) - ordered(there)).abs().max() <= 1 if here.numel() else True
        for name, state in first.state[here].items():
            if name != "step":
                near(state, second.state[there][name], name, first.param_groups[0]["optim_bits"])
        assert second.state[there]["step"].device.type == "cpu"
        there.data.copy_(here.data)
        second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert not first.saw_nonfinite() and not second.saw_nonfinite()


def train(make: Any, steps: range, model: nn.Module, optimizer: Any = None) -> Any:
    optimizer = make(model.parameters(), lr=1e-2) if optimizer is None else optimizer
    for step in steps:
        x = torch.randn(8, 80, generator=torch.Generator().manual_seed(step)).to("sycl")
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.clip_grad_norm_(1.0)
        optimizer.step()
    return optimizer


def model_on_sycl() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(80, 120), nn.Tanh(), nn.Linear(120, 70)).to("sycl")


def test_paged_is_unpaged_and_its_bytes_are_none_of_the_devices() -> None:
    plain, paged = model_on_sycl(), model_on_sycl()
    managed = _C.arena_stats()["managed"]["live_bytes"]
    train(AdamW8bit, range(40), plain)
    torch.sycl.synchronize()
    before = torch.sycl.memory_allocated()
    optimizer = train(PagedAdamW8bit, range(40), paged)
    optimizer.zero_grad()
    torch.sycl.synchronize()
    assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(plain.parameters(), paged.parameters(), strict=True))
    states = [t for s in optimizer.state.values() for name, t in s.items() if name != "step"]
    assert all(_C.is_managed(t) for t in states)
    assert _C.arena_stats()["managed"]["live_bytes"] - managed == sum(t.nbytes for t in states)
    assert torch.sycl.memory_allocated() - before <= 1024  # for the flag and the factor
    del optimizer, states
    gc.collect()
    assert _C.arena_stats()["managed"]["live_bytes"] == managed


@pytest.mark.parametrize("map_location", ["cpu", "sycl"])
def test_paging_outlives_a_save_and_a_load(map_location: str) -> None:
    model = model_on_sycl()
    optimizer, file = train(PagedAdamW8bit, range(5), model), io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, map_location=map_location, weights_only=True)
    resumed = model_on_sycl()
    resumed.load_state_dict(saved["model"])
    second = PagedAdamW8bit(resumed.parameters())
    second.load_state_dict(saved["optimizer"])
    del saved
    assert all(_C.is_managed(t) for s in second.state.values() for name, t in s.items() if name != "step")
    train(None, range(5, 10), model, optimizer)
    train(None, range(5, 10), resumed, second)
    assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(model.parameters(), resumed.parameters(), strict=True))
    assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(states_of(optimizer), states_of(second), strict=True))


def states_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [tensor for state in optimizer.state.values() for tensor in state.values()]


@pytest.mark.parametrize("policy", ["skip_element", "skip_step", "raise"])
def test_gradients_that_are_not_finite(policy: str) -> None:
    parameter = nn.Parameter(torch.zeros(5000, device="sycl"))
    optimizer = AdamW([parameter], lr=0.5, nonfinite=policy)
    parameter.grad = torch.ones_like(parameter)
    parameter.grad[4321] = float("nan")
    if policy == "raise":
        with pytest.raises(FloatingPointError):
            optimizer.step()
    else:
        optimizer.step()
    moved = parameter.detach().cpu() != 0
    assert moved.sum() == (4999 if policy == "skip_element" else 0) and not moved[4321]
    assert optimizer.saw_nonfinite() == (policy != "raise")


def test_a_gradient_that_is_not_finite_on_one_device_skips_the_step_on_all():
    here, there = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(8, device="sycl"))
    optimizer = AdamW([here, there], lr=0.1, nonfinite="skip_step")
    here.grad, there.grad = torch.ones(8), torch.full((8,), float("nan"), device="sycl")
    optimizer.step()
    assert torch.equal(here, torch.ones(8)) and torch.equal(there.cpu(), torch.ones(8))
    there.grad.fill_(1.0)
    optimizer.step()
    assert (here < 1).all() and (there.cpu() < 1).all()
