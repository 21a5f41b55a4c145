# SPDX-License-Identifier: Apache-2.0
"""Page-locked memory: the same tests on every accelerator that is here. Small, because the limit may be 64 KiB."""

import gc
import threading

import pytest
import torch
from fork_server import run_code

import octavo
from octavo import _C

pytestmark = pytest.mark.usefixtures("nothing_stays_pinned")
PAGE = _C.page_bytes()


@pytest.mark.parametrize("align_bytes", [0, 1, 64, 512, PAGE, 4 * PAGE, 1 << 21])
def test_alignment(accelerator, align_bytes):
    pinned = accelerator.pin_memory(torch.arange(100), align_bytes=align_bytes)
    assert pinned.data_ptr() % (align_bytes or PAGE) == 0
    assert torch.equal(pinned, torch.arange(100))
    assert accelerator.is_pinned(pinned)


@pytest.mark.parametrize("align_bytes", [-1, 3, 4097])
def test_an_alignment_that_is_no_power_of_two(accelerator, align_bytes):
    with pytest.raises(ValueError, match=rf"expected an alignment .* got {align_bytes} bytes"):
        accelerator.pin_memory(torch.ones(3), align_bytes=align_bytes)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float64, torch.complex128, torch.bool])
def test_zeros_even_where_something_else_was(accelerator, dtype):
    accelerator.pin_memory(torch.full((500,), 7, dtype=torch.uint8))  # freed at once, and perhaps reused
    zeros = accelerator.pinned_zeros((5, 6), dtype)
    assert zeros.dtype == dtype and zeros.shape == (5, 6) and zeros.is_contiguous()
    assert torch.equal(zeros, torch.zeros(5, 6, dtype=dtype))


def test_a_template_and_a_flat_copy(accelerator):
    tensor = torch.randn(3, 4).t()
    assert torch.equal(accelerator.pin_memory(tensor), tensor)
    assert torch.equal(accelerator.pin_memory(tensor, match_shape=False), tensor.reshape(-1))
    for dense in (tensor.t(), torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last)):
        assert accelerator.pin_memory(dense).stride() == dense.stride()
    assert torch.equal(accelerator.pin_memory(tensor, make_copy=False), torch.zeros(4, 3))
    assert accelerator.pin_memory(tensor, make_copy=False, match_shape=False).shape == (12,)
    assert accelerator.pin_memory(torch.ones(0, 3)).shape == (0, 3)
    assert not accelerator.pin_memory(torch.ones(2, requires_grad=True)).requires_grad


def test_memory_that_the_caller_will_overwrite(accelerator):
    for empty in (
        accelerator.pin_empty(2, 3, dtype=torch.float16),
        accelerator.pin_empty((2, 3), dtype=torch.float16),
        accelerator.pin_empty(torch.Size([2, 3]), dtype=torch.float16, device="cpu"),
        accelerator.pin_empty_like(torch.ones(2, 3), dtype=torch.float16),
        accelerator.pin_empty_like(torch.ones(2, 3, dtype=torch.float16, device=accelerator.device(0))),
    ):
        assert empty.shape == (2, 3) and empty.dtype == torch.float16 and empty.device.type == "cpu"
        assert accelerator.is_pinned(empty)
    assert accelerator.pin_empty(dtype=torch.int8).shape == ()
    with pytest.raises(ValueError, match=r"^\[accelerator\.pin_empty\] expected a device of type cpu, got 'meta'$"):
        accelerator.pin_empty(3, dtype=torch.int8, device="meta")
    with pytest.raises(TypeError, match=r"^\[accelerator\.pin_empty_like\] expected a torch\.Tensor, got int$"):
        accelerator.pin_empty_like(3)


def test_views_are_pinned_and_keep_the_memory(accelerator):
    before = _C.pinned_bytes()
    pinned = accelerator.pin_memory(torch.arange(64.0).reshape(8, 8), align_bytes=0)
    views = [pinned[3], pinned.t(), pinned[::2, 1:3], pinned.view(torch.uint8), torch.from_numpy(pinned.numpy()[2:])]
    assert all(accelerator.is_pinned(view) for view in views)
    assert not accelerator.is_pinned(pinned.clone()) and not accelerator.is_pinned(torch.ones(3))
    del pinned
    for _ in range(len(views) - 1):
        views.pop(0)
        gc.collect()
        assert _C.pinned_bytes() > before
    assert torch.equal(views[0], torch.arange(64.0).reshape(8, 8)[2:])
    views.clear()
    assert _C.pinned_bytes() == before


def test_unpinning_leaves_the_contents(accelerator):
    pinned = accelerator.pin_memory(torch.arange(9))
    can_unpin = accelerator.device().type == "cpu"  # a driver's memory stays pinned
    assert accelerator.unpin_memory(pinned[2:]) is can_unpin
    assert accelerator.is_pinned(pinned) is not can_unpin
    assert accelerator.unpin_memory(pinned) is False
    assert torch.equal(pinned, torch.arange(9))
    assert accelerator.unpin_memory(torch.ones(3)) is False


def test_asynchronous_copies(accelerator):
    source = accelerator.pin_memory(torch.arange(2048, dtype=torch.int32))
    back = accelerator.pinned_zeros((2048,), torch.int32)
    here, there = torch.ones(2, 64 << 20, dtype=torch.uint8, device=accelerator.device(0))
    for _ in range(32):  # the copies wait in the stream behind these
        there.copy_(here, non_blocking=True)
    on_device = source.to(accelerator.device(0), non_blocking=True)
    back.copy_(on_device, non_blocking=True)
    is_done = accelerator.current_stream().query()
    assert is_done == accelerator.is_synchronized_device()
    accelerator.synchronize()
    assert torch.equal(back, source)


def test_memory_freed_under_a_copy_in_flight_is_not_given_away(accelerator):
    copies = []
    for value in range(200):
        source = accelerator.pin_memory(torch.full((1024,), value, dtype=torch.int32))
        copies.append(source.to(accelerator.device(0), non_blocking=True))
        del source
    accelerator.synchronize()
    assert [int(copy.float().mean().item()) for copy in copies] == list(range(200))


def test_threads_pin_and_free_at_once(accelerator):
    wrong = []

    def work(value: int) -> None:
        for _ in range(100):
            tensor = accelerator.pin_memory(torch.full((16,), value))
            if not (accelerator.is_pinned(tensor[1:]) and (tensor == value).all()):
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(value,)) for value in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_helper_pins_for_the_chosen_accelerator(accelerator):
    octavo.set_accelerator(accelerator)
    try:
        pinned = octavo.pinned((2, 3), torch.float16)
        assert pinned.shape == (2, 3) and pinned.dtype == torch.float16 and accelerator.is_pinned(pinned)
        assert pinned.data_ptr() % PAGE == 0 and octavo.pinned(4, align_bytes=1).shape == (4,)
    finally:
        octavo.set_accelerator(None)


@pytest.mark.parametrize("shape", [(1 << 40, 1 << 40), (1 << 61, 2), ((1 << 62) + 1,), (1 << 50,)])
def test_a_tensor_too_large_for_memory(accelerator, shape):
    with pytest.raises(MemoryError, match=r"^\[device\.pinned\] .*(needs more than|cannot be allocated)"):
        accelerator.pinned_zeros(shape, torch.float32)


def test_an_alignment_too_large_for_memory_names_what_was_asked_for():
    with pytest.raises(MemoryError, match=rf"{1 << 62} bytes of memory \({PAGE} aligned to {1 << 62}\) cannot"):
        octavo.accelerator.CPU_Accelerator().pin_memory(torch.ones(1), align_bytes=1 << 62)


def test_an_empty_tensor_is_pinned_too(accelerator):
    assert accelerator.is_pinned(accelerator.pin_memory(torch.ones(0, 3)))
    assert not accelerator.is_pinned(torch.ones(0, 3))


def test_arguments_of_another_type(accelerator):
    with pytest.raises(TypeError, match=r"^\[accelerator\.pinned_zeros\] align_bytes must be an int, got a bool$"):
        accelerator.pin_memory(torch.ones(3), False)  # as if this argument were make_copy
    with pytest.raises(TypeError, match=r"^\[accelerator\.pin_memory\] expected a torch\.Tensor, got list$"):
        accelerator.pin_memory([1.0])


LIMITED = """
import os, resource, sys, torch, octavo
page = octavo._C.page_bytes()
cpu = octavo.accelerator.CPU_Accelerator()
cpu.pin_memory(torch.ones(1))  # everything is loaded before rights are given up
resource.setrlimit(resource.RLIMIT_MEMLOCK, (2 * page, 2 * page))
if os.geteuid() == 0:
    os.setuid(65534)  # root is not bound by the limit
first = octavo.accelerator.CPU_Accelerator().pinned_zeros((page,), torch.uint8)
try:
    octavo.accelerator.CPU_Accelerator().pinned_zeros((2 * page,), torch.uint8)
except MemoryError as error:
    print(error)
assert octavo._C.pinned_bytes() == page
del first
octavo.accelerator.CPU_Accelerator().pinned_zeros((2 * page,), torch.uint8)  # what was freed can be locked again
print("done")
"""


def test_the_limit_is_an_error_that_names_it():
    exit_code, said, complaint = run_code(LIMITED)
    assert exit_code == 0, complaint
    sentence, last = said.splitlines()
    assert last == "done"
    assert f"locking {2 * PAGE} bytes in RAM beside the {PAGE} bytes" in sentence
    assert f"RLIMIT_MEMLOCK is {2 * PAGE} bytes" in sentence and "ulimit -l" in sentence
