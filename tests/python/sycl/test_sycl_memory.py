# SPDX-License-Identifier: Apache-2.0
"""Figures of memory, the cap, the kinds, and memory that other streams still use."""

import random
from collections.abc import Callable

import pytest
import torch
from fork_server import run_code
from sycl_work import keep_busy

import octavo.sycl  # noqa: F401
from octavo.accelerator import SYCL_Accelerator

MIB = 1 << 20


def bytes_tensor(count: int) -> torch.Tensor:
    return torch.empty(count, dtype=torch.uint8, device="sycl")


@pytest.fixture
def limit():
    """Returns a function that sets the cap to what is reserved plus some bytes. Removes the cap afterwards."""
    torch.sycl.empty_cache()
    yield lambda more: torch.sycl.set_memory_limit(torch.sycl.memory_reserved() + more)
    torch.sycl.set_memory_limit(None)


@pytest.mark.parametrize("seed", range(5))
def test_allocated_is_what_tensors_asked_for(seed: int) -> None:
    rng, held = random.Random(seed), []
    start = torch.sycl.memory_allocated()
    torch.sycl.reset_peak_memory_stats()
    most = 0
    for _ in range(300):
        if held and rng.random() < 0.45:
            held.pop(rng.randrange(len(held)))
        else:
            held.append(bytes_tensor(rng.choice([0, 1, 7, 511, 512, 513, 4097, MIB, MIB + 1, 3 * MIB + 5])))
        now = sum(t.numel() for t in held)
        most = max(most, now)
        assert torch.sycl.memory_allocated() - start == now
        assert torch.sycl.memory_reserved() >= torch.sycl.memory_allocated()
    assert torch.sycl.max_memory_allocated() - start == most
    assert torch.accelerator.memory_stats()["requested_bytes.all.current"] - start == now


def test_an_operator_counts_its_result_and_frees_what_it_needed_besides() -> None:
    x = torch.randn(100, 30, device="sycl")
    before = torch.sycl.memory_allocated()
    sorted_, order = torch.sort(x.t(), dim=0)
    assert torch.sycl.memory_allocated() - before == 3000 * 4 + 3000 * 8
    view = sorted_[3:].t()
    assert torch.sycl.memory_allocated() - before == 3000 * 4 + 3000 * 8
    del sorted_, order
    assert torch.sycl.memory_allocated() - before == 3000 * 4
    del view


def test_freed_memory_is_reused_and_given_back() -> None:
    torch.sycl.empty_cache()
    reserved = torch.sycl.memory_reserved()
    first = bytes_tensor(5 * MIB)
    address = first.data_ptr()
    held = torch.sycl.memory_reserved() - reserved
    assert 5 * MIB <= held <= 5 * MIB * 9 / 8
    del first
    assert torch.sycl.memory_reserved() - reserved == held
    assert bytes_tensor(5 * MIB).data_ptr() == address
    torch.sycl.empty_cache()
    assert torch.sycl.memory_reserved() == reserved


def test_the_cap_is_real(limit) -> None:
    limit(4 * MIB)
    x = bytes_tensor(3 * MIB)
    with pytest.raises(torch.OutOfMemoryError, match=rf"\] {2 * MIB} bytes .* cannot be allocated: .* the limit is"):
        bytes_tensor(2 * MIB)
    free, total = torch.sycl.mem_get_info()
    assert free == MIB and total == torch.sycl.get_memory_limit()
    del x
    bytes_tensor(4 * MIB)  # cached memory is freed before an allocation is refused
    assert torch.sycl.memory_stats()["num_ooms"] >= 1


@pytest.mark.parametrize("more", [5 * MIB - 1, 777, 1 << 44])
def test_all_that_is_free_can_be_allocated(limit, more: int) -> None:
    limit(more)
    free, total = torch.sycl.mem_get_info()
    assert free <= total <= torch.sycl.get_device_properties().total_memory
    if more < 1 << 44:  # the test leaves a larger amount to other processes
        bytes_tensor(free)


@pytest.mark.parametrize("cached", [[], [3 * MIB + 5, 700, 1], [MIB + 1] * 3])
def test_all_that_is_available_can_be_allocated_and_no_more(limit, cached: list[int]) -> None:
    """The bytes by which tensors are rounded up are not available; cached memory is."""
    held = [bytes_tensor(5), bytes_tensor(2 * MIB + 1)]
    limit(9 * MIB + 777)
    blocks = [bytes_tensor(count) for count in cached]
    del blocks
    available = torch.sycl.available_memory()
    assert available >= 8 * MIB and available == SYCL_Accelerator().available_memory()
    bytes_tensor(available)
    with pytest.raises(torch.OutOfMemoryError):
        bytes_tensor(available + 1)
    del held


def test_a_storage_is_freed_and_grown_on_its_device() -> None:
    """FSDP frees the memory of gathered parameters in this way, and allocates it again for backward."""
    x = torch.arange(1000.0, device="sycl")
    storage, before = x.untyped_storage(), torch.sycl.memory_allocated()
    storage.resize_(0)
    assert storage.device == x.device == torch.device("sycl", 0) and storage.nbytes() == 0
    assert torch.sycl.memory_allocated() == before - 4000
    storage.resize_(4000)
    assert storage.device == torch.device("sycl", 0) and torch.sycl.memory_allocated() == before
    assert x.fill_(3).sum().item() == 3000
    storage.resize_(8000)
    assert torch.sycl.memory_allocated() == before + 4000 and (x == 3).all()
    storage.resize_(4)
    assert torch.sycl.memory_allocated() == before - 3996 and x[:1].tolist() == [3]
    assert torch.empty(0, device="sycl").set_(storage, 0, (1,)).device == x.device


def test_the_cache_stays_within_the_device() -> None:
    torch.sycl.empty_cache()
    total = torch.sycl.get_device_properties().total_memory
    # no cached block has these sizes, and the memory is never touched: together they are more than there is
    for eighths in range(8, 17):
        bytes_tensor(total // 20 * eighths // 8 + eighths * MIB)
        bytes_tensor(total // 5 * eighths // 8 + eighths * MIB)
    assert torch.sycl.memory_reserved() <= total
    torch.sycl.empty_cache()


def test_a_little_less_is_served_from_the_cache() -> None:
    torch.sycl.empty_cache()
    reserved = torch.sycl.memory_reserved()
    address = bytes_tensor(9 * MIB).data_ptr()
    held = torch.sycl.memory_reserved() - reserved
    smaller = bytes_tensor(8 * MIB)
    assert smaller.data_ptr() == address and torch.sycl.memory_stats()["active_bytes.all.current"] == held
    assert bytes_tensor(7 * MIB).data_ptr() != address
    del smaller
    torch.sycl.empty_cache()
    assert torch.sycl.memory_reserved() == reserved


def test_sizes_that_cannot_be() -> None:
    for size in [(-3,), (-1, -4), (1 << 32, 1 << 32), (1 << 61,)]:
        with pytest.raises(RuntimeError, match=r"negative|overflow"):
            torch.sycl.empty(*size, dtype=torch.float64)
    with pytest.raises(torch.OutOfMemoryError):
        torch.sycl.empty((1 << 63) - 1, dtype=torch.uint8)


def test_an_operator_out_of_memory_leaves_its_arguments_alone(limit) -> None:
    x = torch.ones(MIB, device="sycl")
    limit(MIB)
    with pytest.raises(torch.OutOfMemoryError):
        x.exp()
    torch.sycl.set_memory_limit(None)
    assert x.exp().shape == x.shape and (x == 1).all()


@pytest.mark.parametrize("text, outcome", [("1048576", "OutOfMemoryError"), ("lots", "expected a number of bytes")])
def test_the_cap_by_environment(text: str, outcome: str) -> None:
    code = "import torch, octavo.sycl; torch.empty(1 << 20, device='sycl')"
    exit_code, _, complaint = run_code(code, OCTAVO_SYCL_MEMORY_BYTES=text)
    assert exit_code == 1 and outcome in complaint


def test_a_negative_cap_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a number of bytes or None, got -1"):
        torch.sycl.set_memory_limit(-1)


def test_figures_of_the_device() -> None:
    facts = torch.sycl.get_device_properties()
    free, total = torch.sycl.mem_get_info()
    assert 0 < free <= total == facts.total_memory
    assert torch.sycl.get_device_name() == facts.name != ""


@pytest.mark.parametrize("kind", ["device", "shared", "host"])
def test_kinds_of_memory(kind: str) -> None:
    x = torch.sycl.empty(3, 5, dtype=torch.float64, kind=kind)
    assert (x.device.type, x.shape, x.dtype) == ("sycl", (3, 5), torch.float64)
    source = torch.randn(3, 5, dtype=torch.float64).pin_memory()
    assert torch.equal(x.copy_(source, non_blocking=True).to("cpu"), source)
    with pytest.raises(ValueError, match="kind must be one of device, shared, host, got 'texture'"):
        torch.sycl.empty(1, kind="texture")


def test_memory_in_use_on_another_stream_is_not_reused() -> None:
    side = torch.sycl.Stream()
    x = bytes_tensor(MIB)
    address = x.data_ptr()
    keep_busy(side)
    x.record_stream(side)
    del x
    during = bytes_tensor(MIB)
    assert not side.query(), "the other stream ended too early for this test to say anything"
    assert during.data_ptr() != address
    side.synchronize()
    assert address in [t.data_ptr() for t in [bytes_tensor(MIB), bytes_tensor(MIB)]]


def test_a_lazy_clone_in_use_on_another_stream() -> None:
    side = torch.sycl.Stream()
    x = bytes_tensor(MIB)
    address, clone = x.data_ptr(), torch._lazy_clone(x)
    keep_busy(side)
    clone.record_stream(side)
    del x, clone
    during = bytes_tensor(MIB)
    assert not side.query(), "the other stream ended too early for this test to say anything"
    assert during.data_ptr() != address
    side.synchronize()


def test_host_memory_of_a_stream_is_not_pinned_anew() -> None:
    source = torch.sycl.empty(MIB, dtype=torch.float32, kind="host").fill_(1.0)
    target = torch.zeros(MIB, device="sycl")
    address, stream = source.data_ptr(), torch.sycl.current_stream()
    keep_busy(stream)
    target.copy_(source, non_blocking=True)
    del source
    pinned = torch.empty(MIB, pin_memory=True)
    assert not stream.query(), "the stream ended too early for this test to say anything"
    assert pinned.data_ptr() != address
    # safe, because the stream orders both uses
    assert torch.sycl.empty(MIB, dtype=torch.float32, kind="host").data_ptr() == address
    stream.synchronize()
    assert (target == 1).all()


def test_without_record_stream_memory_is_reused_at_once() -> None:
    x = bytes_tensor(MIB)
    address = x.data_ptr()
    del x
    assert bytes_tensor(MIB).data_ptr() == address


@pytest.mark.parametrize("part", [lambda pinned: pinned, lambda pinned: torch.from_numpy(pinned.numpy()[16:])])
def test_pinned_memory_waits_for_its_copies(part: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Also where the storage that is copied begins inside of it."""
    side, source = torch.sycl.Stream(), torch.ones(MIB).pin_memory()
    assert source.is_pinned() and source[5:].is_pinned() and not torch.ones(3).is_pinned()
    address, source = source.data_ptr(), part(source)
    target = torch.empty(len(source), device="sycl")
    with side:
        keep_busy(side)
        target.copy_(source, non_blocking=True)
    del source
    other = torch.zeros(MIB).pin_memory()
    assert not side.query(), "the other stream ended too early for this test to say anything"
    assert other.data_ptr() != address
    side.synchronize()
    assert (target == 1).all()


def test_memory_that_nobody_has_written_is_filled_where_torch_is_asked_for_the_same_results():
    torch.use_deterministic_algorithms(True)
    try:
        made = [torch.empty(300, device="sycl"), torch.empty_strided((3, 4), (1, 3), device="sycl")]
        whole = torch.empty(5, dtype=torch.int32, device="sycl")
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(bool(tensor.isnan().all()) for tensor in made)
    assert whole.tolist() == [2**31 - 1] * 5


@pytest.mark.parametrize("reset", ["reset_peak_memory_stats", "reset_accumulated_memory_stats"])
def test_figures_of_a_device_that_does_not_exist_cannot_be_reset(reset):
    with pytest.raises(ValueError, match=r"\[device\.sycl\] expected a device from sycl:0"):
        getattr(torch.sycl, reset)(7)


PINNED_FIRST = """
import torch
import octavo.sycl
from octavo.accelerator import SYCL_Accelerator

pinned = SYCL_Accelerator().pin_memory(torch.ones(15))
torch.ones(1, device="sycl")
assert pinned.is_pinned() and not torch.ones(15).is_pinned()
"""


def test_torch_knows_memory_that_was_pinned_before_it_pinned_any_itself():
    exit_code, _, complaint = run_code(PINNED_FIRST)
    assert exit_code == 0, complaint
