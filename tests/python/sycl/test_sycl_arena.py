# SPDX-License-Identifier: Apache-2.0
"""Managed memory on the device `sycl`: its tensors are on the device, but do not count as the device's bytes."""

import pytest
import torch
from sycl_work import keep_busy

import octavo.sycl  # noqa: F401
from octavo import _C

SYCL = torch.device("sycl", 0)
MIB = 1 << 20


@pytest.fixture
def arena():
    """Returns an arena. All of its memory must be freed in the end."""
    made = _C.Arena(torch.device("sycl"))
    yield made
    assert made.stats()["live_held_bytes"] == made.stats()["tensors"] == 0


def test_managed_bytes_are_not_the_devices(arena) -> None:
    torch.sycl.synchronize()
    torch.sycl.reset_peak_memory_stats()
    device_bytes = torch.sycl.memory_allocated(), torch.sycl.memory_reserved()
    state = arena.zeros([MIB], torch.float32)
    assert (torch.sycl.memory_allocated(), torch.sycl.memory_reserved()) == device_bytes
    assert torch.sycl.max_memory_allocated() == device_bytes[0]
    assert arena.stats()["kind"] == "managed" and arena.stats()["live_bytes"] == 4 * MIB
    assert state.device == SYCL and _C.is_managed(state) and state.count_nonzero() == 0
    ordinary = torch.zeros(MIB, device="sycl")
    assert torch.sycl.memory_allocated() == device_bytes[0] + 4 * MIB
    assert arena.stats()["live_bytes"] == 4 * MIB and not _C.is_managed(ordinary)


def test_operators_read_and_write_it_in_place(arena) -> None:
    like = torch.randn(40, 30, device="sycl").t()
    state = arena.zeros_like(like, torch.float32)
    assert state.stride() == like.stride()
    address = state.data_ptr()
    for to_device in (True, False, True):
        (_C.prefetch if to_device else _C.evict)(state)
        state.mul_(0.5).add_(like)
        (_C.prefetch if to_device else _C.evict)(state[3:7])
    expected = torch.zeros(30, 40)
    for _ in range(3):
        expected.mul_(0.5).add_(like.cpu())
    assert state.cpu().equal(expected) and state.data_ptr() == address
    assert not _C.is_managed(state + 1)


def test_memory_that_a_stream_uses_is_freed_when_it_is_done(arena) -> None:
    state = arena.zeros([MIB], torch.float32)
    out = torch.empty(MIB, device="sycl")
    stream = torch.sycl.Stream()
    stream.wait_stream(torch.sycl.current_stream())
    with torch.sycl.stream(stream):
        keep_busy(stream)
        out.copy_(state)
    del state
    assert arena.stats()["live_bytes"] == 0
    torch.sycl.synchronize()
    assert out.count_nonzero() == 0


def test_a_budget_is_torchs_error() -> None:
    arena = _C.Arena(SYCL, budget_bytes=MIB)
    held = arena.empty([MIB], torch.uint8)
    with pytest.raises(torch.OutOfMemoryError, match=rf"sycl:0 cannot be allocated: .* holds {MIB} bytes, the budget"):
        arena.zeros([1], torch.uint8)
    assert arena.stats()["tensors"] == 1
    del held


def test_files_are_for_the_cpu(tmp_path) -> None:
    with pytest.raises(ValueError, match="files are for arenas of the CPU"):
        _C.Arena(SYCL, directory=str(tmp_path))


def test_the_devices_own_arena_is_one() -> None:
    before = _C.arena_stats()["managed"]["live_bytes"]
    state = _C.Arena.of(torch.device("sycl")).zeros([10], torch.float32)
    assert _C.Arena.of(SYCL).stats()["live_bytes"] >= 40
    assert _C.arena_stats()["managed"]["live_bytes"] == before + 40
    del state
    assert _C.arena_stats()["managed"]["live_bytes"] == before
