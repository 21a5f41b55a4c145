# SPDX-License-Identifier: Apache-2.0
"""Gradients encoded by the device's own kernels, on a stream beside backward's and in page-locked memory, as on a GPU;
two ranks, with the bits of the CPU's kernels."""

from collections.abc import Callable

import pytest
import torch
from test_sycl_ddp import JOINED, group_of, momenta, train
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import octavo.sycl


def as_gpu(rank: int, function: Callable[..., object], *args: object) -> object:
    octavo._C.sycl.act_as_gpu(True)
    try:
        return function(rank, *args)
    finally:
        octavo._C.sycl.act_as_gpu(False)


PLANS = ["dense", "int4+ef", "sign+ef", "sign-vote", "dgc:0.05", "delta+int4", "threshold:3:int8+ef", "bf16:lossless"]
PLANS += ["topk:0.1+ef:0.9+hits", "topk:0.1+ef:0.9:8bit+hits", "lsh:0.5:int4"]


@pytest.mark.parametrize("plan", PLANS)
def test_ddp_has_the_bits_of_the_cpu(two_ranks, plan: str) -> None:
    expected, got = two_ranks.run(train, "cpu", plan), two_ranks.run(as_gpu, train, "sycl", plan)
    for (losses, weights), (cpu_losses, cpu_weights) in zip(got, expected, strict=True):
        assert losses == cpu_losses
        assert all(torch.equal(a, b) for a, b in zip(weights, cpu_weights, strict=True))


@pytest.mark.parametrize("name", JOINED)
def test_momenta_on_the_wire(two_ranks, name: str) -> None:
    expected, got = two_ranks.run(momenta, "cpu", name), two_ranks.run(as_gpu, momenta, "sycl", name)
    for weights in got:
        assert all(torch.equal(a, b) for a, b in zip(weights, expected[0], strict=True))


def reduced(rank: int, device: str) -> list[Tensor]:
    """Reduces tensors of odd sizes, of zeros, of half precision and with strides."""
    group, results = group_of(device), []
    generator = torch.Generator().manual_seed(rank)
    for plan in ("dense", "bf16", "bf16:lossless", "threshold:2", "int4", "sign-vote"):
        for dtype in (torch.float32, torch.bfloat16):
            for values in (torch.randn(5001, generator=generator), torch.zeros(70000), torch.tensor([])):
                x = values.to(dtype).to(device)
                octavo.all_reduce(x, plan, group=group)
                results.append(x.cpu())
            strided = torch.randn(64, 33, generator=generator).to(dtype).to(device).t()
            octavo.all_reduce(strided, plan, group=group)
            results.append(strided.cpu())
    return results


def test_all_reduce_has_the_bits_of_the_cpu(two_ranks) -> None:
    expected, got = two_ranks.run(reduced, "cpu"), two_ranks.run(as_gpu, reduced, "sycl")
    for results, cpu_results in zip(got, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(results, cpu_results, strict=True))


def state_after(rank: int, device: str, state: dict[str, object] | None) -> dict[str, object]:
    torch.manual_seed(0)
    model = nn.Linear(256, 64).to(device)
    handle = octavo.compress(ddp := DistributedDataParallel(model, process_group=group_of(device)), "sign+ef")
    if state is not None:
        handle.load_state_dict({**state, "rank": rank})
    for step in range(3):
        ddp(torch.full((4, 256), 0.1 * (rank + step + 1), device=device)).square().mean().backward()
    return handle.state_dict()


def on_cpu(state: dict[str, object]) -> dict[str, object]:
    return {key: value.cpu() if isinstance(value, Tensor) else value for key, value in state.items()}


def residuals_move(rank: int) -> None:
    on_device = as_gpu(rank, state_after, "sycl", None)
    residuals = [value for value in on_device.values() if isinstance(value, Tensor)]
    assert residuals and all(value.device.type == "sycl" for value in residuals)
    first = state_after(rank, "cpu", None)
    for saved in (on_device, first):  # either state may be loaded on either device
        further = on_cpu(as_gpu(rank, state_after, "sycl", saved))
        expected = state_after(rank, "cpu", saved)
        for key, value in expected.items():
            assert torch.equal(further[key], value) if isinstance(value, Tensor) else further[key] == value


def test_residuals_live_on_the_device_and_are_saved_and_loaded_anywhere(two_ranks) -> None:
    two_ranks.run(residuals_move)


def momenta_elsewhere(rank: int) -> None:
    model = nn.Linear(256, 64).to("sycl")
    handle = octavo.compress(ddp := DistributedDataParallel(model, process_group=group_of("sycl")), "int4+ef")
    for m in (torch.zeros(64, 256), torch.zeros(64, 256, device="meta")):
        with pytest.raises(ValueError, match=r"parameter's device: weight is on sycl:0, its momentum on (cpu|meta)"):
            handle.set_momentum({model.weight: (m, torch.ones(64, 256, device="sycl"))}, 0.9)
    ddp(torch.ones(4, 256, device="sycl")).sum().backward()  # nothing has changed


def test_momenta_on_another_device_are_refused(two_ranks) -> None:
    two_ranks.run(as_gpu, momenta_elsewhere)


def nan_in_a_step(rank: int) -> None:
    model = nn.Linear(256, 64).to("sycl")
    handle = octavo.compress(ddp := DistributedDataParallel(model, process_group=group_of("sycl")), "int4+ef")
    ddp(torch.ones(4, 256, device="sycl")).sum().backward()
    before = handle.state_dict()
    poison = float("nan") if rank == 0 else 1.0
    ddp(torch.full((4, 256), poison, device="sycl")).sum().backward()
    assert handle.stats()["nonfinite_steps"] == 1
    after = handle.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items() if isinstance(value, Tensor))


def test_a_nan_leaves_no_trace(two_ranks) -> None:
    two_ranks.run(as_gpu, nan_in_a_step)
