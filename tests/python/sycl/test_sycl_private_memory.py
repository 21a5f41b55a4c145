# SPDX-License-Identifier: Apache-2.0
"""Memory that only the device can read, as a GPU's is and as the CPU device here pretends: copies are staged, and other
reads on the host are refused."""

import copy
import io
import itertools
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from sycl_work import keep_busy

import octavo.sycl
from octavo import collectives

REFUSED = "the host cannot read this tensor, which lies only in memory of sycl:0"


@pytest.fixture(autouse=True)
def private() -> Iterator[None]:
    octavo._C.sycl.act_as_gpu(True)
    yield
    octavo._C.sycl.act_as_gpu(False)


def on_device(values: torch.Tensor) -> torch.Tensor:
    return torch.sycl.empty(*values.shape, dtype=values.dtype, kind="device").copy_(values)


def numbers(count: int, dtype: torch.dtype) -> torch.Tensor:
    values = torch.arange(count, dtype=torch.float32).sub(7).div(2)
    return torch.complex(values, -values).to(dtype) if dtype.is_complex else values.to(dtype)


PLACES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "device": on_device,
    "shared": lambda x: x.to("sycl"),
    "host": lambda x: torch.sycl.empty(*x.shape, dtype=x.dtype, kind="host").copy_(x),
    "pageable": lambda x: x.clone(),
    "pinned": lambda x: x.pin_memory(),
}
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {  # views of 60 numbers, each of shape [4, 5]
    "whole": lambda x: x[:20].view(4, 5),
    "inside": lambda x: x[7:27].view(4, 5),
    "transposed": lambda x: x[:20].view(5, 4).t(),
    "with gaps": lambda x: x.view(6, 10)[1:5, ::2],
    "overlapping": lambda x: x.as_strided((4, 5), (3, 2), 4),
    "broadcast": lambda x: x[5:10].expand(4, 5),
}
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64]


@pytest.mark.parametrize("source_layout", LAYOUTS)
@pytest.mark.parametrize("target_layout", ["whole", "inside", "transposed", "with gaps"])
@pytest.mark.parametrize("non_blocking", [False, True])
def test_copies_in_all_directions(target_layout: str, source_layout: str, non_blocking: bool) -> None:
    write, read = LAYOUTS[target_layout], LAYOUTS[source_layout]
    for target, source in itertools.product(PLACES, PLACES):
        if "device" not in (target, source):
            continue
        values, before = numbers(60, torch.float32), torch.full((60,), -99.0)
        expected, got = before.clone(), PLACES[target](before)
        write(expected).copy_(read(values))
        write(got).copy_(read(PLACES[source](values)), non_blocking=non_blocking)
        torch.sycl.synchronize()
        assert torch.equal(got.cpu(), expected), (target, source)  # nothing between the elements has changed


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize("to, of", list(itertools.product(DTYPES, DTYPES)))
def test_copies_between_dtypes(to: torch.dtype, of: torch.dtype) -> None:
    values = numbers(20, of)
    expected = values.to(to)
    for target, source in (("device", "device"), ("device", "pageable"), ("shared", "device")):
        got = PLACES[target](torch.zeros(20, dtype=to)).copy_(PLACES[source](values))
        assert torch.equal(got.cpu(), expected)
    assert torch.equal(on_device(values).to(to).cpu(), expected)


def test_copies_broadcast() -> None:
    target = on_device(torch.zeros(3, 4))
    target.copy_(torch.arange(4.0))
    assert target.tolist() == [[0, 1, 2, 3]] * 3
    target[:, 1:3].copy_(on_device(torch.arange(3.0).view(3, 1)))
    assert target.tolist() == [[0, i, i, 3] for i in range(3)]
    target.copy_(torch.tensor(5))
    assert target.tolist() == [[5] * 4] * 3


def test_lazy_conjugates_and_negatives() -> None:
    values = numbers(6, torch.complex64)
    x = on_device(values)
    assert torch.equal(x.conj().cpu(), values.conj())
    assert torch.equal(x.clone().copy_(x.conj()).cpu(), values.conj())
    x.conj().copy_(values)
    assert torch.equal(x.cpu(), values.conj())
    x.copy_(x.conj())
    assert torch.equal(x.cpu(), values)


def test_overlaps_are_refused_as_on_the_cpu() -> None:
    x = on_device(torch.arange(6.0))
    for copy_, sentence in (
        (lambda x: x[1:].copy_(x[:-1]), "some elements of the input tensor and the written-to tensor"),
        (lambda x: x[:1].expand(3).copy_(torch.zeros(3)), "more than one element of the written-to tensor"),
    ):
        for tensor in (x, torch.arange(6.0)):
            with pytest.raises(RuntimeError, match=sentence):
                copy_(tensor)
    x.view(2, 3).copy_(x.view(2, 3))
    assert x.tolist() == list(range(6))


def test_copies_wait_for_the_stream() -> None:
    side = torch.sycl.Stream()
    x, ready = on_device(torch.zeros(1 << 20)), torch.ones(1 << 20).pin_memory()
    torch.sycl.synchronize()
    keep_busy(side)
    with side:
        x.copy_(ready, non_blocking=True)
        assert not side.query(), "the copy was waited for, or the stream ended too early for this test to say anything"
        assert (x.cpu() == 1).all()
    x[::2].copy_(torch.zeros(1 << 19), non_blocking=True)  # staged: the caller's memory is free at once
    assert x.cpu().view(-1, 2).sum(0).tolist() == [0, 1 << 19]


def test_what_is_made_of_copies() -> None:
    x = on_device(torch.arange(12.0).view(3, 4))
    assert x.clone().sum() == 66 and copy.deepcopy(x).sum() == 66 and x.t().contiguous().sum() == 66
    assert x.tolist() == x.double().tolist() == torch.arange(12.0).view(3, 4).tolist()
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    assert torch.equal(torch.load(file).cpu(), x.cpu())
    lazy = torch._lazy_clone(x)
    lazy.copy_(torch.zeros(3, 4))
    assert lazy.sum() == 0 and x.cpu().sum() == 66


def test_octavos_kernels_read_it() -> None:
    values = torch.randn(1001)
    assert torch.equal(octavo.packbits(on_device(values)).cpu(), octavo.packbits(values))


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x + 1,
        lambda x: x.zero_(),
        lambda x: x.item(),
        lambda x: torch.equal(x, x),
        lambda x: torch.ones(1, device="sycl").add_(x),
        lambda x: torch.cat([torch.ones(1, device="sycl"), x]),
        lambda x: torch.add(torch.ones(1, device="sycl"), 1, out=x),
        lambda x: torch._foreach_add([x], 1),
        lambda x: x.bernoulli_(),
        lambda x: torch.ones(2, device="sycl")[on_device(torch.tensor([1]))],
        lambda x: x.to_sparse(),
        lambda x: torch.sparse_coo_tensor(
            torch.zeros(1, 1, dtype=torch.long, device="sycl"), x, (3,), check_invariants=False
        ).to_dense(),
        lambda x: torch.nn.functional.conv1d(x.view(1, 1, 1), x.view(1, 1, 1)),
    ],
)
def test_what_the_host_would_do_is_refused(operation) -> None:
    x = on_device(torch.tensor([3.0]))
    with pytest.raises((RuntimeError, NotImplementedError), match=REFUSED):
        operation(x)
    assert x.tolist() == [3.0]


@pytest.fixture
def group_of_one() -> Iterator[None]:
    dist.init_process_group(octavo.sycl.COLLECTIVES, store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_collective_on_the_host_is_refused(group_of_one) -> None:
    with pytest.raises(RuntimeError, match=REFUSED):
        dist.all_reduce(on_device(torch.ones(3)))


@pytest.mark.parametrize("plan", ["dense", "bf16", "sign-vote"])
def test_octavo_reduces_it_by_the_devices_kernels(group_of_one, plan: str) -> None:
    x = on_device(torch.tensor([1.0, -1.0, 1.0]))
    octavo.all_reduce(x, plan)
    assert x.tolist() == [1, -1, 1]


def test_a_reduction_that_is_done_holds_no_memory(group_of_one) -> None:
    """The thread that runs a group's calls releases a tensor before it reports that the call is done."""
    octavo.all_reduce(torch.ones(1), "dense")  # makes the objects that the group keeps
    began, held = torch.sycl.memory_allocated(), []
    gate = threading.Event()
    collectives._channel(dist.group.WORLD)._queue.submit(gate.wait)
    pending = octavo.all_reduce(on_device(torch.ones(3)), "dense", async_op=True)
    pending._future.add_done_callback(lambda _: held.append(torch.sycl.memory_allocated() - began))
    gate.set()
    pending.wait()
    assert held == [0]


def test_its_storage_cannot_grow() -> None:
    x = on_device(torch.ones(2))
    for grow in (lambda: x.resize_(3), lambda: x.untyped_storage().resize_(100)):
        with pytest.raises(RuntimeError, match="resiz"):
            grow()
    assert x[:2].tolist() == [1, 1] and x.untyped_storage().nbytes() == 8
