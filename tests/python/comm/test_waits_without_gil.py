# SPDX-License-Identifier: Apache-2.0
"""While a rank waits for another one, the other threads of its process run: no wait holds Python's lock."""

import gc
import threading
import time
from collections.abc import Callable
from typing import NoReturn

import pytest
import torch
import torch.distributed as dist
from patience import PATIENCE
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from turns import tell, wait_until

import octavo

pytestmark = pytest.mark.timeout(120)

TIMEOUT_S = PATIENCE


class Away(Exception):
    """What a rank raises in the place of a call that the other one waits for."""


def longest_stall_s(work: Callable[[], None]) -> tuple[float, float]:
    """Returns for how long another thread stood still while `work` ran, and how long that took. Tells the other rank
    that it may go on."""
    stall_s, over = 0.0, threading.Event()

    def tick() -> None:
        nonlocal stall_s
        last = time.monotonic()
        while not over.wait(0.01):
            now = time.monotonic()
            stall_s, last = max(stall_s, now - last), now

    thread = threading.Thread(target=tick)
    thread.start()
    begun = time.monotonic()
    work()
    took_s = time.monotonic() - begun
    tell("rank 0 has waited")
    over.wait(0.05)  # so that the thread sees a stall that ended with the work
    over.set()
    thread.join()
    return stall_s, took_s


def build_outer(rank: int) -> tuple[float, float] | None:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    class Absent(octavo._C.Outer):
        def __init__(self, *_, **__) -> None:
            wait_until("rank 0 has waited")  # connected, and silent
            raise Away

    def build() -> None:
        with pytest.raises(TimeoutError):
            octavo.Outer(model, optimizer, plan="int4+ef", every=4, timeout_s=TIMEOUT_S)

    if rank == 0:
        return longest_stall_s(build)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Away):
        patch.setattr(octavo._C, "Outer", Absent)
        octavo.Outer(model, optimizer, plan="int4+ef", every=4, timeout_s=TIMEOUT_S)
    return None


def free_a_model_in_its_backward_pass(rank: int) -> tuple[float, float] | None:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(8)])
    held = [DistributedDataParallel(model, bucket_cap_mb=0.25)]
    held.append(octavo.compress(held[0], "int4+ef", timeout_s=TIMEOUT_S))
    x = torch.randn(4, 256)
    for _ in range(2):
        held[0](x).sum().backward()
    dist.barrier()
    if rank == 1:
        wait_until("rank 0 has waited")
        return None

    def fail(_: torch.Tensor) -> NoReturn:
        raise Away

    def free() -> None:
        held.clear()
        gc.collect()

    model[0].weight.register_hook(fail)
    with pytest.raises(Away):
        held[0](x).sum().backward()
    return longest_stall_s(free)


@pytest.mark.parametrize("call", [build_outer, free_a_model_in_its_backward_pass])
def test_other_threads_run_while_a_rank_waits(two_ranks, call):
    stall_s, took_s = two_ranks.run(call)[0]
    assert took_s > TIMEOUT_S / 2  # it did wait
    assert stall_s < 0.8 * took_s
