# SPDX-License-Identifier: Apache-2.0
"""Streams and events: order in a stream, between streams by events, between kernels and the host's operators."""

import random
import threading
import time

import pytest
import torch
from sycl_work import keep_busy

import octavo.sycl


class Program:
    """A program of random operations on a few buffers; each may run on another stream, after the events of its
    buffers."""

    SIZE = 4096

    def __init__(self, seed: int, device: str, streams: int = 0):
        self.rng = random.Random(seed)
        self.buffers = [torch.full((self.SIZE,), float(i), device=device) for i in range(6)]
        self.streams = [torch.sycl.Stream() for _ in range(streams)]
        self.used = [None] * len(self.buffers)  # the event of the last operation on a buffer
        for stream in self.streams:
            stream.wait_stream(torch.sycl.current_stream())

    def step(self) -> None:
        to, source = self.rng.sample(range(len(self.buffers)), 2)
        kind, where = self.rng.randrange(5), self.rng.randrange(8)
        if not self.streams:
            self.apply(kind, self.buffers[to], self.buffers[source])
            return
        stream = self.streams[where % len(self.streams)]
        for event in (self.used[to], self.used[source]):
            if event is not None:
                stream.wait_event(event)
        with stream:
            self.apply(kind, self.buffers[to], self.buffers[source])
        self.used[to] = self.used[source] = stream.record_event()

    @staticmethod
    def apply(kind: int, to: torch.Tensor, source: torch.Tensor) -> None:
        if kind == 0:  # a copy by the queue
            to.copy_(source, non_blocking=True)
        elif kind == 1:  # two kernels of the device, and one operator of the host
            to.mul_(octavo.unpackbits(octavo.packbits(source), Program.SIZE))
        elif kind == 2:
            torch.ops.octavo.unpackbits_out(octavo.packbits(source), out=to)
        elif kind == 3:  # the host
            to.add_(source).remainder_(97.0).sub_(31.0)
        else:
            to[: Program.SIZE // 2].copy_(source[Program.SIZE // 2 :], non_blocking=True)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_random_programs_give_the_sequential_result(seed: int) -> None:
    print("seed", seed)
    here, there = Program(seed, "cpu"), Program(seed, "sycl", streams=4)
    for _ in range(2000):
        here.step()
        there.step()
    torch.sycl.synchronize()
    for expected, got in zip(here.buffers, there.buffers, strict=True):
        assert torch.equal(expected, got.cpu())


def test_an_operator_waits_for_the_kernels_before_it() -> None:
    x, y = torch.zeros(1 << 22, device="sycl"), torch.ones(1 << 22, device="sycl")
    for i in range(50):
        y.fill_(i)
        x.copy_(y, non_blocking=True)
        assert (x + 1).min().item() == i + 1


def test_a_stream_of_two_threads() -> None:
    count, stop = 1 << 20, threading.Event()
    sevens = torch.full((count,), 7, device="sycl")
    x, expected = torch.ones(count, device="sycl"), torch.arange(count)

    def free_what_the_stream_still_writes() -> None:
        while not stop.is_set():
            for _ in range(4):
                torch.empty_like(sevens).copy_(sevens, non_blocking=True)
            torch.sycl.synchronize()

    thread = threading.Thread(target=free_what_the_stream_still_writes)
    thread.start()
    try:
        for _ in range(60):  # nonzero allocates its result inside of the CPU's kernel
            assert torch.equal(x.nonzero().view(-1).cpu(), expected)
            grown = torch.zeros(8, device="sycl", dtype=torch.int64)
            assert not grown.resize_(count)[:8].any()
    finally:
        stop.set()
        thread.join()


def test_kernels_of_four_threads_in_one_stream() -> None:
    x = torch.randint(-9, 9, (4096,), device="sycl")
    expected, found = octavo.packbits(x.float()), []

    def launch() -> None:
        try:
            for _ in range(3000):
                got = octavo.packbits(x.float())  # settles, then launches
            found.append(torch.equal(got, expected))
        except RuntimeError as error:
            found.append(error)

    threads = [threading.Thread(target=launch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 4


def test_a_tensor_copied_onto_itself() -> None:
    x = torch.arange(8.0, device="sycl")
    assert x.view(-1).copy_(x.view(-1), non_blocking=True).tolist() == list(range(8))
    with pytest.raises(RuntimeError, match="refer to a single memory location"):
        x[1:].copy_(x[:-1], non_blocking=True)
    assert (x + 1).tolist() == list(range(1, 9))


def test_wait_stream_orders_two_streams() -> None:
    first, second = torch.sycl.Stream(), torch.sycl.Stream()
    source, target = torch.ones(1 << 20, device="sycl"), torch.zeros(1 << 20, device="sycl")
    keep_busy(first)
    with first:
        source.copy_(torch.full((1 << 20,), 7.0).pin_memory(), non_blocking=True)
    second.wait_stream(first)
    with second:
        target.copy_(source, non_blocking=True)
        assert (target == 7).all()  # an operator of the host, on the second stream


def test_events_tell_when_and_how_long() -> None:
    stream = torch.sycl.Stream()
    start, end = (torch.sycl.Event(enable_timing=True) for _ in range(2))
    assert start.query()  # never recorded
    begin = time.perf_counter()
    start.record(stream)
    keep_busy(stream)
    end.record(stream)
    assert not end.query()
    end.synchronize()
    wall_ms = 1e3 * (time.perf_counter() - begin)
    assert end.query() and 0 < start.elapsed_time(end) <= wall_ms + 1
    assert start.elapsed_time(end) > 0.3 * wall_ms


def test_current_streams() -> None:
    assert torch.sycl.current_stream() == torch.sycl.default_stream() == torch.accelerator.current_stream()
    side, urgent = torch.sycl.Stream(), torch.sycl.Stream(priority=-1)
    assert len({torch.sycl.default_stream(), side, urgent}) == 3
    with torch.sycl.stream(side):
        assert torch.sycl.current_stream() == side
        seen = []
        thread = threading.Thread(target=lambda: seen.append(torch.sycl.current_stream()))
        thread.start()
        thread.join()
        assert seen == [torch.sycl.default_stream()]
    assert torch.sycl.current_stream() == torch.sycl.default_stream()
    with torch.sycl.stream(None), torch.sycl.device(0):
        assert torch.sycl.current_device() == 0


def test_torchs_streams_and_events_of_the_device_are_instances() -> None:
    current = torch.sycl.current_stream()
    for stream in (current, torch.sycl.default_stream(), torch.sycl.Stream(), torch.Stream(device="sycl")):
        assert isinstance(stream, torch.sycl.Stream) and not isinstance(stream, torch.sycl.Event)
    for event in (torch.sycl.Event(), current.record_event(), torch.Event(device="sycl")):
        assert isinstance(event, torch.sycl.Event) and not isinstance(event, torch.sycl.Stream)

    class Derived(torch.sycl.Stream):
        pass

    elsewhere = torch.Stream(stream_id=0, device_index=-1, device_type=0)
    assert isinstance(Derived(), torch.sycl.Stream) and isinstance(Derived(), Derived)
    assert not isinstance(current, Derived)
    assert not isinstance(elsewhere, torch.sycl.Stream) and not isinstance(1, torch.sycl.Stream)


def test_backward_runs_on_the_stream_of_the_forward_pass() -> None:
    side = torch.sycl.Stream()
    x = torch.randn(1000, device="sycl", requires_grad=True)
    side.wait_stream(torch.sycl.current_stream())
    with side:
        keep_busy(side, copies=5)
        loss = (x * x).sum()
    loss.backward()
    assert torch.equal(x.grad, 2 * x.detach())


def test_a_device_that_is_not_there() -> None:
    count = torch.sycl.device_count()
    with pytest.raises(RuntimeError, match=f"expected a device from sycl:0 to sycl:{count - 1}, got sycl:{count}"):
        torch.empty(1, device=f"sycl:{count}")
    for use in (
        lambda: torch.accelerator.current_stream(100),
        lambda: torch.sycl.Stream(device=100),
        lambda: torch.Stream(device="sycl:100").synchronize(),
        lambda: torch.Generator(device="sycl:100"),
        lambda: torch.sycl.synchronize(100),
    ):
        with pytest.raises((RuntimeError, ValueError), match="got sycl:100"):
            use()
    with pytest.raises(ValueError, match=r"^\[sycl\.\w+\] expected a device of type sycl, got 'cpu'$"):
        torch.sycl.set_device("cpu")


@pytest.mark.parametrize("device", [0, "0", "sycl", "sycl:0", torch.device("sycl", 0), None, -1])
def test_what_names_a_device(device) -> None:
    torch.sycl.set_device(device)
    assert torch.sycl.current_device() == 0 and torch.sycl.current_stream(device) == torch.sycl.current_stream()


@pytest.mark.parametrize(
    ("device", "error", "complaint"),
    [
        (300, ValueError, "expected the index of a device, which is from 0 to 127, got 300"),
        (2**40, ValueError, f"expected the index of a device, which is from 0 to 127, got {2**40}"),
        ("sycl:256", ValueError, "expected the index of a device, which is from 0 to 127, got 256"),
        ("cpu:256", ValueError, "expected a device of type sycl, got 'cpu:0'"),
        ("abacus", ValueError, "expected an index or a device of type sycl, got 'abacus'"),
        (1.5, TypeError, "expected an int, a str, a torch.device or None, got float"),
        ([0], TypeError, "expected an int, a str, a torch.device or None, got list"),
        (True, TypeError, "expected an int, a str, a torch.device or None, got bool"),
    ],
)
def test_what_names_no_device(device, error: type[Exception], complaint: str) -> None:
    for use in (torch.sycl.set_device, torch.sycl.memory_allocated, torch.sycl.Stream):
        with pytest.raises(error, match=r"^\[sycl\.\w+\] ") as raised:
            use(device)
        assert str(raised.value).endswith(f"] {complaint}")


def test_a_stream_that_is_not_there() -> None:
    stream = torch.Stream(stream_id=1000, device_index=0, device_type=torch.sycl.current_stream().device_type)
    with pytest.raises(RuntimeError, match="expected a stream from 0 to 64 of sycl:0, got 1000"):
        stream.synchronize()


def test_contexts_of_one_stream_are_nested_and_open_in_several_threads() -> None:
    side, first = torch.sycl.Stream(), torch.sycl.current_stream()
    entered, left, found = threading.Event(), threading.Event(), []

    def enter_later() -> None:
        mine = torch.sycl.Stream()
        with torch.sycl.stream(mine):
            with torch.sycl.stream(side):
                entered.set()
                left.wait(30)
            found.append(torch.sycl.current_stream() == mine)

    thread = threading.Thread(target=enter_later)
    with torch.sycl.stream(side):
        thread.start()
        assert entered.wait(30)
        with torch.sycl.stream(side):
            assert torch.sycl.current_stream() == side
        assert torch.sycl.current_stream() == side
    assert torch.sycl.current_stream() == first
    left.set()
    thread.join()
    assert found == [True]
