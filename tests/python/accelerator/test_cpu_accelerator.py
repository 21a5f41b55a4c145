# SPDX-License-Identifier: Apache-2.0
"""What only the host does, and what DeepSpeed's CPU_Accelerator gets wrong."""

from pathlib import Path

import pytest
import torch

from octavo import _C
from octavo.accelerator import CPU_Accelerator

CPU = CPU_Accelerator()


def field_bytes(path: str, name: str) -> int:
    lines = Path(path).read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))


def test_any_rank_shares_the_one_device(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")  # upstream returns the string "3"
    assert CPU.current_device() == 0 and CPU.device_count() == 1
    assert CPU.device(3) == CPU.device() == torch.device("cpu")  # upstream: None
    CPU.set_device(3)
    assert CPU.current_device_name() == CPU.device_name(3) == "cpu"


def test_streams_and_events_are_classes():
    assert isinstance(CPU.Stream(), torch.Stream)  # upstream: None
    assert CPU.Event(enable_timing=True, blocking=True, interprocess=False).query() is True
    assert CPU.Stream() != CPU.Stream()


def test_memory_is_what_linux_says():
    assert CPU.total_memory() <= field_bytes("/proc/meminfo", "MemTotal")
    assert CPU.memory_allocated() == pytest.approx(field_bytes("/proc/self/status", "VmRSS"), rel=0.05)


def test_the_kernel_counts_the_locked_pages():
    before = field_bytes("/proc/self/status", "VmLck")
    pinned = CPU.pinned_zeros((_C.page_bytes() + 1,), torch.uint8)
    assert field_bytes("/proc/self/status", "VmLck") == before + 2 * _C.page_bytes()
    CPU.unpin_memory(pinned)
    assert field_bytes("/proc/self/status", "VmLck") == before
    pinned = CPU.pinned_zeros((1,), torch.uint8)
    del pinned
    assert field_bytes("/proc/self/status", "VmLck") == before


def test_float16_is_what_onednn_says():
    assert CPU.is_fp16_supported() is torch.ops.mkldnn._is_mkldnn_fp16_supported()
    assert CPU.is_bf16_supported() is True
