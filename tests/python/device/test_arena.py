# SPDX-License-Identifier: Apache-2.0
"""Arenas of the CPU, as optimizers use them from Python, and managed memory through the seed's C symbols."""

import copy
import ctypes
import io
from pathlib import Path

import pytest
import torch
from fork_server import run_code

from octavo import _C

CPU = torch.device("cpu")
PAGE = _C.page_bytes()


def test_live_bytes_are_zero_once_the_tensors_are_dead() -> None:
    arena = _C.Arena(CPU)
    parameter = torch.randn(300, 7).t()
    state = [arena.zeros_like(parameter, torch.float32), arena.zeros([3], torch.uint8)]
    assert state[0].stride() == parameter.stride() and state[0].count_nonzero() == 0
    assert all(_C.is_managed(tensor) for tensor in state) and not _C.is_managed(parameter)
    held = (300 * 7 * 4 + PAGE - 1) // PAGE * PAGE + PAGE
    figures = {"live_bytes": 8403, "peak_bytes": 8403, "live_held_bytes": held, "peak_held_bytes": held, "tensors": 2}
    assert arena.stats() == {**figures, "kind": "host", "budget_bytes": 0}
    assert _C.arena_stats()["host"]["live_bytes"] >= 8403
    del state
    assert arena.stats()["live_bytes"] == arena.stats()["live_held_bytes"] == arena.stats()["tensors"] == 0
    assert arena.stats()["peak_bytes"] == 8403
    arena.reset_peak()
    assert arena.stats()["peak_bytes"] == 0


def test_a_tensor_of_an_arena_is_an_ordinary_tensor() -> None:
    arena = _C.Arena(CPU)
    moment = arena.zeros([1000], torch.float32)
    moment.lerp_(torch.ones(1000), 0.5)
    file = io.BytesIO()
    torch.save(moment, file)
    file.seek(0)
    for other in (copy.deepcopy(moment), moment.clone(), torch.load(file)):
        assert other.equal(moment) and not _C.is_managed(other)
    assert arena.stats()["tensors"] == 1


def test_a_budget_is_a_memory_error_that_says_what_is_held() -> None:
    arena = _C.Arena(CPU, budget_bytes=2 * PAGE)
    held = arena.empty([PAGE + 1], torch.uint8)
    before = arena.stats()
    with pytest.raises(MemoryError, match=rf"holds {2 * PAGE} bytes, the budget is {2 * PAGE}$"):
        arena.zeros([1], torch.float32)
    assert arena.stats() == before
    del held
    arena.zeros([2 * PAGE], torch.uint8)


def test_a_wrong_directory_is_a_value_error(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(ValueError, match=f"got '{missing}': No such file or directory"):
        _C.Arena(CPU, directory=str(missing)).zeros([1], torch.float32)


@pytest.mark.parametrize(("device", "words"), [("meta", "got one on meta"), ("cuda", "the cuda back end is missing")])
def test_a_device_without_managed_memory_is_refused(device: str, words: str) -> None:
    with pytest.raises(NotImplementedError, match=words):
        _C.Arena(torch.device(device))


def test_state_in_files_may_exceed_the_memory_that_a_process_may_have(tmp_path: Path) -> None:
    """RLIMIT_DATA counts private memory that is written to: ordinary memory, but not mapped files."""
    code = """
import resource, sys, torch
from octavo import _C
COUNT, CPU = 64 << 20, torch.device("cpu")  # elements; 256 MiB
used = next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (used + (128 << 20),) * 2)
try:
    _C.Arena(CPU).zeros([COUNT], torch.float32)
except MemoryError as refused:
    assert "the system has no more to give" in str(refused), refused
else:
    raise SystemExit("expected a MemoryError")
arena = _C.Arena(CPU, directory=sys.argv[1])
moments = [arena.zeros([COUNT], torch.float32) for _ in range(2)]
for step in (1, 2):
    for moment in moments:
        _C.prefetch(moment)
        moment.add_(step)
        _C.evict(moment)
assert [moment[::4097].unique().tolist() for moment in moments] == [[3.0], [3.0]]
assert arena.stats()["live_bytes"] == 2 * 4 * COUNT and arena.stats()["kind"] == "file"
del moments, moment
assert arena.stats()["live_held_bytes"] == 0
print("trained")
"""
    status, out, errors = run_code(code, tmp_path, OMP_NUM_THREADS="1")
    assert (status, out.strip()) == (0, "trained"), errors
    assert not list(tmp_path.iterdir())


def test_the_c_symbols_of_the_seed() -> None:
    library = ctypes.CDLL(str(Path(_C.__file__).parent / "lib" / "liboctavo.so"))
    library.cget_managed_ptr.restype = ctypes.c_void_p
    library.octavo_last_error.restype = ctypes.c_char_p
    count = 1000
    pointer = ctypes.c_void_p(library.cget_managed_ptr(ctypes.c_size_t(4 * count)))
    assert pointer.value, library.octavo_last_error()
    library.cfill_fp32(pointer, None, ctypes.c_float(0.25), ctypes.c_long(count))
    library.cprefetch(pointer, ctypes.c_size_t(4 * count), 0)
    values = torch.frombuffer((ctypes.c_float * count).from_address(pointer.value), dtype=torch.float32)
    assert values.eq(0.25).all()
    library.cfill_uint8(pointer, None, ctypes.c_ubyte(255), ctypes.c_long(4))
    assert values[0].isnan() and values[1:].eq(0.25).all()
    library.cprefetch(pointer, ctypes.c_size_t(4 * count), -1)
    assert library.octavo_last_error() == b""
    library.cfree_managed_ptr(pointer)
    library.cfree_managed_ptr(pointer)
    assert b"[kernels.managed] expected a pointer that cget_managed_ptr gave" in library.octavo_last_error()


FORKING = """
import os, sys, threading, torch
from octavo import _C
arena = _C.Arena(torch.device("cpu"), sys.argv[1])
small = arena.zeros([1000], torch.float32)
is_over = threading.Event()
def allocate():
    while not is_over.wait(0.001):
        arena.zeros([25_000_000], torch.float32)  # 100 MB, for which the system takes its time
threading.Thread(target=allocate).start()
try:
    for _ in range(8):
        child = os.fork()
        if child == 0:
            del small
            assert _C.Arena(torch.device("cpu"), sys.argv[1]).zeros([1000], torch.float32).count_nonzero() == 0
            os._exit(0)
        assert os.waitpid(child, 0) == (child, 0)
finally:
    is_over.set()
print("all children have ended")
"""


def test_a_forked_child_frees_and_makes_tensors_while_another_thread_of_its_parent_makes_some() -> None:
    """Nothing in the child could unlock what that thread had locked."""
    exit_code, said, complaint = run_code(FORKING, "/dev/shm", timeout_s=40)
    assert (exit_code, said) == (0, "all children have ended\n"), complaint
