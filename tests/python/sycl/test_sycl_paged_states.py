# SPDX-License-Identifier: Apache-2.0
"""A handle's state on `sycl` in managed memory: it uses none of the device's bytes, and has the bits of the CPU."""

from __future__ import annotations

import pytest
import torch
from test_sycl_ddp import group_of
from test_sycl_own_kernels import as_gpu
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import octavo.sycl
from octavo import _C


def train(rank: int, device: str, plan: str, is_paged: bool) -> list[Tensor]:
    """Trains with a step that is rolled back; state is saved and the handle is built anew."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 101), nn.ReLU(), nn.Linear(101, 64)).to(device)
    saved = None
    for part in range(2):
        ddp = DistributedDataParallel(model, process_group=group_of(device), bucket_cap_mb=0.02)
        handle = octavo.compress(ddp, plan, is_paged=is_paged)
        if saved is not None:
            handle.load_state_dict(saved)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(10 * part + rank)
        for step in range(3):
            x = torch.randn(16, 64, generator=generator).to(device)
            ((ddp(x) - x).square().mean() * (float("nan") if step == 1 else 1)).backward()
            if step != 1:
                optimizer.step()
            optimizer.zero_grad()
        saved = handle.state_dict()
    for kept in handle._compressor.state().tensors.values():
        assert _C.is_managed(kept) == is_paged
    states = [value.cpu() for value in saved.values() if isinstance(value, Tensor)]
    return [p.detach().cpu() for p in model.parameters()] + states


@pytest.mark.parametrize("plan", ["int4+ef", "topk:0.1+ef:0.9:8bit+hits", "delta+int4"])
def test_paged_states_have_the_bits_of_the_cpu(two_ranks, plan: str) -> None:
    expected = two_ranks.run(train, "cpu", plan, False)
    for got in (two_ranks.run(as_gpu, train, "sycl", plan, True), two_ranks.run(train, "sycl", plan, True)):
        for tensors, cpu_tensors in zip(got, expected, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(tensors, cpu_tensors, strict=True))


def device_bytes(rank: int, is_paged: bool) -> int:
    """Returns the bytes of the device that residuals use."""
    torch.manual_seed(0)
    model = nn.Linear(512, 512, bias=False).to("sycl")
    handle = octavo.compress(
        ddp := DistributedDataParallel(model, process_group=group_of("sycl")), "int4+ef", is_paged=is_paged
    )
    for _ in range(2):
        ddp(torch.ones(4, 512, device="sycl")).square().mean().backward()
        model.zero_grad()
    torch.sycl.synchronize()
    before = torch.sycl.memory_allocated()
    handle.drop_residuals()
    return before - torch.sycl.memory_allocated()


def test_paged_states_are_none_of_the_devices_bytes(two_ranks) -> None:
    both_generations = 2 * 2 * 512 * 512 // 2 * 2  # in bfloat16; half of them are the sender's and half the owner's
    assert two_ranks.run(as_gpu, device_bytes, False) == [both_generations] * 2
    assert two_ranks.run(as_gpu, device_bytes, True) == [0, 0]


def train_joined(rank: int, device: str, is_paged: bool) -> list[Tensor]:
    torch.manual_seed(0)
    model = nn.Linear(256, 64).to(device)
    optimizer = octavo.optim.OneBitAdamW(model.parameters(), lr=1e-3, warmup_steps=3, is_paged=is_paged)
    ddp = DistributedDataParallel(model, process_group=group_of(device))
    octavo.compress(ddp, "sign+ef", optimizer=optimizer, is_paged=is_paged)
    for step in range(8):
        ddp(torch.full((4, 256), 0.1 * (rank + step), device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert all(_C.is_managed(state["exp_avg"]) == is_paged for state in optimizer.state.values())
    return [p.detach().cpu() for p in model.parameters()]


def test_paged_momenta_are_sent_by_the_devices_kernels(two_ranks) -> None:
    expected = two_ranks.run(train_joined, "cpu", False)[0]
    for got in (two_ranks.run(as_gpu, train_joined, "sycl", True), two_ranks.run(train_joined, "sycl", True)):
        for weights in got:
            assert all(torch.equal(a, b) for a, b in zip(weights, expected, strict=True))
