# SPDX-License-Identifier: Apache-2.0
"""Parameters of an engine that move from the device `sycl` to the host and back, on streams of their own."""

import torch
from sycl_work import keep_busy

import octavo.sycl  # noqa: F401
from octavo import _C

COUNT = 1 << 20


def parameter(value: float) -> _C.DSParam:
    return _C.DSParam(0, [COUNT], torch.full((COUNT,), value, device="sycl"))


def test_values_go_to_the_host_and_come_back() -> None:
    torch.sycl.synchronize()
    before = torch.sycl.memory_allocated()
    param = parameter(3.0)
    for _ in range(3):
        param.offload()
        param.offload()  # the values are on the host already
        on_host = param.get_ds_tensor()
        assert on_host.device.type == "cpu" and _C.is_pinned(on_host) and on_host.eq(3).all()
        assert torch.sycl.memory_allocated() == before
        param.reload()
        param.reload()
        assert param.get_ds_tensor().device.type == "sycl"
        assert torch.sycl.memory_allocated() == before + 4 * COUNT
        assert param.get_ds_tensor().cpu().eq(3).all()


def test_a_move_waits_for_the_work_before_it_and_is_waited_for() -> None:
    """Each change of the values is late; none is lost, and none is seen by earlier work."""
    param, seen = parameter(0.0), []
    for step in range(1, 6):
        keep_busy(torch.sycl.current_stream(), copies=4)
        values = param.get_ds_tensor()
        values.add_(1)
        param.offload()
        del values
        scratch = torch.full((COUNT,), -1.0, device="sycl")  # would take memory that is still being read
        param.reload()  # comes after the offload that is under way
        seen.append((step, param.get_ds_tensor().clone()))
        del scratch
    for step, values in seen:
        assert values.cpu().eq(step).all()


def test_another_stream_may_use_what_was_reloaded() -> None:
    param, other = parameter(1.0), torch.sycl.Stream()
    param.offload()
    keep_busy(torch.sycl.current_stream(), copies=4)
    param.reload()
    with other:
        doubled = param.get_ds_tensor() * 2
    other.synchronize()
    assert doubled.cpu().eq(2).all()
