# SPDX-License-Identifier: Apache-2.0
"""Two ranks on sycl: torch's coalescing manager, with the device named and without."""

import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from test_sycl_ddp import group_of

import octavo.sycl  # noqa: F401

SYCL = torch.device("sycl", 0)


def numbers(rank: int, count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.float32).add(10 * rank + 1)


def all_reduce(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    dist.all_reduce(x, group=group)
    return x


def all_gather(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    whole = x.new_empty(2 * x.numel())
    dist.all_gather_into_tensor(whole, x, group=group)
    return whole


def reduce_scatter(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    half = x.new_empty(x.numel() // 2)
    dist.reduce_scatter_tensor(half, x, group=group)
    return half


def all_to_all(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    swapped = torch.empty_like(x)
    dist.all_to_all_single(swapped, x, group=group, async_op=True)
    return swapped


def broadcast(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    dist.broadcast(x, src=1, group=group, async_op=True)
    return x


Collective = Callable[[torch.Tensor, dist.ProcessGroup], torch.Tensor]


def coalesced(rank: int, collective: Collective, named: bool, async_ops: bool) -> list[list[float]]:
    group = group_of("sycl")
    manager = dist._coalescing_manager(group, SYCL if named else None, async_ops=async_ops)
    with manager as works:
        results = [collective(numbers(rank, count).sycl(), group) for count in (4, 6)]
    if async_ops:
        works.wait()
    return [result.tolist() for result in results]


def one_by_one(rank: int, collective: Collective) -> list[list[float]]:
    group = group_of("cpu")
    results = [collective(numbers(rank, count), group) for count in (4, 6)]
    dist.barrier(group=group)  # the collectives that nobody waited for are done before this
    return [result.tolist() for result in results]


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("async_ops", [False, True])
@pytest.mark.parametrize("collective", [all_reduce, all_gather, reduce_scatter])
def test_what_torch_coalesces(two_ranks, collective: Collective, named: bool, async_ops: bool) -> None:
    expected = two_ranks.run(one_by_one, collective)
    assert two_ranks.run(coalesced, collective, named, async_ops) == expected


@pytest.mark.parametrize("async_ops", [False, True])
@pytest.mark.parametrize("collective", [all_to_all, broadcast])
def test_what_the_device_coalesces(two_ranks, collective: Collective, async_ops: bool) -> None:
    """No collective is waited for by itself: the manager's work stands for all of them."""
    expected = two_ranks.run(one_by_one, collective)
    assert two_ranks.run(coalesced, collective, True, async_ops) == expected


def batched(rank: int) -> list[list[float]]:
    group, peer = group_of("sycl"), 1 - rank
    received = [torch.zeros(count, device="sycl") for count in (4, 6)]
    operations = [dist.P2POp(dist.irecv, x, peer, group=group) for x in received]
    operations += [dist.P2POp(dist.isend, numbers(rank, x.numel()).sycl(), peer, group=group) for x in received]
    works = dist.batch_isend_irecv(operations)
    assert len(works) == 1  # one work for all of them
    works[0].wait()
    return [x.tolist() for x in received]


def test_batches_of_messages(two_ranks) -> None:
    assert two_ranks.run(batched) == [[numbers(1 - rank, count).tolist() for count in (4, 6)] for rank in (0, 1)]


def late_peer(rank: int) -> None:
    group = group_of("sycl")
    x = [numbers(rank, 4).sycl() for _ in range(2)]
    with dist._coalescing_manager(group, SYCL, async_ops=True) as works:
        for each in x:
            if rank == 1:
                time.sleep(0.3)
            dist.broadcast(each, src=1, group=group, async_op=True)
    (work,) = works.works
    assert rank == 1 or not work.is_completed()
    future = work.get_future()
    work.wait()
    assert work.is_completed() and work.is_success()
    assert [each.tolist() for each in future.wait()] == [each.tolist() for each in x] == [numbers(1, 4).tolist()] * 2
    assert [each.data_ptr() for each in work.result()] == [each.data_ptr() for each in x]


def test_the_work_stands_for_all(two_ranks) -> None:
    two_ranks.run(late_peer)


def silent_peer(rank: int) -> None:
    group, x = group_of("sycl"), torch.zeros(2, device="sycl")
    if rank == 0:
        with dist._coalescing_manager(group, SYCL, async_ops=True) as works:
            for _ in range(2):
                dist.irecv(x, src=1, group=group)
        start = time.monotonic()
        with pytest.raises(RuntimeError, match=r"[Tt]imed out"):
            works.works[0].wait(timedelta(seconds=0.3))
        assert time.monotonic() - start < 5
    dist.barrier()  # of another group; the peer is still there


def test_a_deadline(two_ranks) -> None:
    two_ranks.run(silent_peer)


def misuse(rank: int) -> None:
    group, x = group_of("sycl"), torch.zeros(1, device="sycl")
    with pytest.raises(ValueError, match=r"\[comm.host_backend\] endCoalescing was called without startCoalescing"):
        group._end_coalescing(SYCL)
    with pytest.raises(KeyError), dist._coalescing_manager(group, SYCL):
        dist.broadcast(x, src=0, group=group)
        raise KeyError
    dist.distributed_c10d._world.pg_coalesce_state.pop(group)  # the trace that torch itself leaves of it
    with dist._coalescing_manager(group, SYCL, async_ops=True) as works:
        pass
    (work,) = works.works
    assert work.wait() and work.is_completed() and work.result() == [] and work.get_future().wait() == []


def test_an_exception_within_leaves_nothing_behind(two_ranks) -> None:
    two_ranks.run(misuse)
