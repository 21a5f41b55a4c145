# SPDX-License-Identifier: Apache-2.0
"""What only the host does, and what DeepSpeed's CPU_Accelerator gets wrong."""

import platform
import re
from pathlib import Path

import pytest
import torch
from fork_server import run_code

from octavo import _C
from octavo.accelerator import CPU_Accelerator

CPU = CPU_Accelerator()


def field_bytes(path: str, name: str) -> int:
    lines = Path(path).read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))


def test_any_rank_shares_the_one_device(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "3")  # upstream returns the string "3"
    assert CPU.current_device() == 0 and CPU.device_count() == 1
    assert CPU.device(3) == CPU.device() == torch.device("cpu")  # upstream returns None
    CPU.set_device(3)
    assert (
        CPU.current_device_name() == CPU.device_name(3) == CPU.device_name(300) == CPU.device_name("cpu:300") == "cpu"
    )


def test_streams_and_events_are_classes():
    assert isinstance(CPU.Stream(), torch.Stream)  # upstream returns None
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


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the flags are those of x86")
def test_float16_is_what_the_processor_computes_in():
    flags = set(re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)[1].split())
    assert CPU.is_fp16_supported() is ("avx512_fp16" in flags)
    assert CPU.is_bf16_supported() is True


def test_float16_is_what_onednn_may_use():
    ask = "from octavo.accelerator import CPU_Accelerator; print(CPU_Accelerator().is_fp16_supported())"
    said = run_code(ask, ONEDNN_MAX_CPU_ISA="AVX2")  # AVX2 has no arithmetic in float16
    assert said == (0, "False\n", "")


def test_a_stream_takes_events_of_the_cpu_only():
    stream = CPU_Accelerator().Stream()
    for use, other in ((stream.wait_event, None), (stream.wait_event, 1), (stream.record_event, 1)):
        with pytest.raises(
            TypeError, match=rf"^\[accelerator\.event\] event must be an event of the cpu, got {other}$"
        ):
            use(other)


def test_an_event_is_timed_against_its_like():
    start = CPU.Event(enable_timing=True)
    start.record()
    with pytest.raises(TypeError, match=r"^\[accelerator\.event\] end_event must be an event of the cpu, got "):
        start.elapsed_time(object())
