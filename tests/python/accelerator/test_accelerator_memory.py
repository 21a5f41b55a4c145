# SPDX-License-Identifier: Apache-2.0
"""Memory figures: the same tests on every accelerator that is here."""

import gc

import pytest
import torch

MIB = 1 << 20
BYTES = 256 * MIB  # large enough that a host's other memory does not matter, and that malloc gives it back


@pytest.fixture(autouse=True)
def settled(accelerator):
    gc.collect()
    accelerator.empty_cache()
    accelerator.synchronize()


def allocate(accelerator) -> torch.Tensor:
    return torch.ones(BYTES, dtype=torch.uint8, device=accelerator.device(0))


def test_a_tensor_is_counted_while_it_lives(accelerator):
    before = accelerator.memory_allocated()
    tensor = allocate(accelerator)
    assert accelerator.memory_allocated(0) - before == pytest.approx(BYTES, abs=16 * MIB)
    assert accelerator.memory_reserved() >= BYTES and accelerator.memory_cached() >= BYTES
    del tensor
    assert accelerator.memory_allocated() - before < 16 * MIB


@pytest.mark.parametrize(
    "reset", ["reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached"]
)  # upstream, on xpu, the latter two call functions of torch that do not exist
def test_the_peak_is_seen_between_two_calls_and_reset(accelerator, reset):
    getattr(accelerator, reset)()
    before = accelerator.max_memory_allocated()
    allocate(accelerator)  # freed at once, so that only a constant measurement sees it
    assert accelerator.max_memory_allocated() - before == pytest.approx(BYTES, abs=16 * MIB)
    assert accelerator.max_memory_reserved() >= BYTES and accelerator.max_memory_cached() >= BYTES
    accelerator.empty_cache()
    getattr(accelerator, reset)(0)
    assert accelerator.max_memory_allocated(0) - before < 16 * MIB


def test_stats_agree_with_the_calls(accelerator):
    tensor = allocate(accelerator)
    stats = accelerator.memory_stats()
    assert stats["allocated_bytes.all.current"] == pytest.approx(accelerator.memory_allocated(), abs=MIB)
    assert stats["allocated_bytes.all.peak"] == pytest.approx(accelerator.max_memory_allocated(), abs=MIB)
    assert stats["reserved_bytes.all.current"] == pytest.approx(accelerator.memory_reserved(), abs=MIB)
    assert stats["reserved_bytes.all.peak"] >= tensor.nbytes


def test_live_tensors_are_not_available_even_before_they_are_used(accelerator):
    if accelerator.is_synchronized_device():
        pytest.skip("the host's allocator keeps no account of its tensors: Linux counts pages once they are used")

    def reserve(size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device=accelerator.device(0))

    untouched = []
    while accelerator.available_memory() > 8 * BYTES:
        untouched.append(reserve(4 * BYTES))
    before = accelerator.available_memory()
    untouched.append(reserve(BYTES))
    assert before - accelerator.available_memory() == pytest.approx(BYTES, abs=BYTES // 2)  # allocators round


def test_total_and_available(accelerator):
    assert 0 < accelerator.available_memory() <= accelerator.total_memory(0)
    assert accelerator.memory_allocated() < accelerator.total_memory()
