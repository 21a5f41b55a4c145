# SPDX-License-Identifier: Apache-2.0
"""What `import octavo` and `import octavo.sycl` do, and the errors where the device cannot be used."""

import subprocess
from pathlib import Path

import torch
from fork_server import run_code

import octavo.info
import octavo.sycl


def run(code: str, *arguments: str | Path, **environment: str) -> str:
    exit_code, said, complaint = run_code(code, *arguments, **environment)
    assert exit_code == 0, complaint
    return said.strip()


def test_import_octavo_leaves_torchs_accelerator_as_it_was() -> None:
    code = """
import torch
def served():
    return torch.accelerator.is_available(), torch.accelerator.current_accelerator(), hasattr(torch, "sycl")
before = served()
import octavo, octavo.accelerator, octavo.info, octavo.optim, octavo.train.devices
octavo.get_accelerator()
octavo.SyclKernel("", "nothing")
x = torch.ones(3, requires_grad=True)
(x * 2).sum().backward()
print(served() == before, "libsycl" in open("/proc/self/maps").read())
"""
    assert run(code) == "True False"


def test_octavo_sycl_is_there_after_its_import() -> None:
    code = """
import torch, octavo
try:
    octavo.sycl
except AttributeError as error:
    print(error)
import octavo.sycl
print(octavo.sycl is torch.sycl, torch.accelerator.current_accelerator())
"""
    sentence = "[octavo.sycl] octavo.sycl exists only after `import octavo.sycl`, which makes the device sycl"
    assert run(code).splitlines() == [sentence, "True sycl"]


def test_the_accelerator_that_is_asked_for_by_name_makes_the_device() -> None:
    code = "import torch, octavo; print(octavo.get_accelerator().device_name(), hasattr(torch, 'sycl'))"
    assert run(code, OCTAVO_ACCELERATOR="sycl") == "sycl True"


def test_import_and_seeds_load_no_run_time() -> None:
    code = """
import torch, octavo.sycl
torch.manual_seed(3)
torch.device("sycl")
print("libsycl" in open("/proc/self/maps").read(), torch.sycl.initial_seed())
"""
    assert run(code) == "False 3"


def test_a_checkpoint_on_the_cpu_leaves_the_device_alone() -> None:
    code = """
import torch, octavo.sycl
from torch.utils.checkpoint import checkpoint
x = torch.ones(3, requires_grad=True)
checkpoint(lambda x: x * x, x, use_reentrant=False).sum().backward()
print(torch.sycl._initialized, torch.sycl.is_initialized())
torch.ones(1, device="sycl")
print(torch.sycl._initialized, hasattr(torch.sycl, "_other"))
"""
    assert run(code).splitlines() == ["False False", "True False"]


def test_a_forked_process_is_told_to_use_spawn() -> None:
    code = """
import os, torch, octavo.sycl
x = torch.ones(2, device="sycl")
if os.fork() == 0:
    try:
        x + 1
    except RuntimeError as error:
        os.write(1, str(error).encode())
    os.write(1, str(torch.sycl._is_in_bad_fork()).encode())
    os._exit(0)
os.wait()
"""
    assert "start processes that use it with 'spawn'True" in run(code)


def test_a_forked_process_is_told_so_by_kernels_on_memory_of_the_host() -> None:
    code = """
import os, signal, time, torch, octavo
octavo.packbits(torch.ones(1000))
child = os.fork()
if child == 0:
    try:
        octavo.packbits(torch.ones(1000))
    except NotImplementedError as error:
        os.write(1, str(error).encode())
    os._exit(0)
for _ in range(500):
    if os.waitpid(child, os.WNOHANG)[0]:
        break
    time.sleep(0.1)
else:
    os.kill(child, signal.SIGKILL)
"""
    assert "SYCL was used before this process was forked" in run(code, OCTAVO_BACKEND="sycl")


def test_a_program_that_stays_on_the_cpu_may_fork() -> None:
    code = """
import os, torch, octavo.sycl
torch.ones(3, requires_grad=True).sum().backward()
assert torch.sycl.device_count() == 1 and not torch.sycl.is_initialized()
if os.fork() == 0:
    total = torch.ones(2, device="sycl").sum().item()
    os.write(1, f"{total} {torch.sycl.is_initialized()}".encode())
    os._exit(0)
os.wait()
"""
    assert run(code) == "2.0 True"


def test_a_forked_process_frees_and_differentiates() -> None:
    code = """
import os, torch, octavo.sycl
pinned, x = torch.ones(1 << 20).pin_memory(), torch.empty(1 << 20, device="sycl")
x.copy_(pinned, non_blocking=True)
torch.sycl.synchronize()
if os.fork() == 0:
    del pinned, x
    torch.ones(3, requires_grad=True).sum().backward()
    os.write(1, b"freed")
    os._exit(0)
print(os.wait()[1], torch.sycl.memory_allocated())
"""
    assert run(code) == f"freed0 {4 << 20}"


def test_a_worker_of_a_data_loader_drops_the_parents_events_and_streams() -> None:
    code = """
import gc, torch, octavo.sycl

class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.event = torch.sycl.Event(enable_timing=True)
        self.event.record()
        self.stream = torch.sycl.Stream()
        self.events = [self.stream.record_event()]
    def __len__(self):
        return 4
    def __getitem__(self, row):
        self.event = self.events = self.stream = None
        gc.collect()
        return torch.full((2,), float(row))

torch.ones(2, device="sycl")
rows = Rows()
loader = torch.utils.data.DataLoader(rows, num_workers=1, multiprocessing_context="fork", timeout=30)
print([row[0].tolist() for row in loader], rows.event.query())
"""
    assert run(code) == "[[0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [3.0, 3.0]] True"


def test_torch_serves_one_device_from_outside() -> None:
    code = """
import torch
torch.utils.rename_privateuse1_backend("other")
import octavo.sycl
print(hasattr(torch, "sycl"), octavo.sycl.why_missing())
try:
    octavo.sycl.register()
except RuntimeError as error:
    print(error)
"""
    sentence = (
        "[sycl.why_taken] the device 'other' of another library uses torch's PrivateUse1, the only place for a device "
        "from outside: use only one of the two in a process"
    )
    assert run(code).splitlines() == [f"False {sentence}", sentence]


def test_no_device_is_one_sentence() -> None:
    code = """
import torch, octavo.sycl
print(torch.sycl.is_available(), torch.sycl.device_count())
try:
    torch.ones(2, device="sycl")
except RuntimeError as error:
    print(str(error).splitlines()[0])
"""
    words = run(code, ONEAPI_DEVICE_SELECTOR="cuda:*").splitlines()
    assert words[0] == "False 0" and "the sycl back end is missing" in words[1]


def test_figures_of_memory_are_0_without_a_device() -> None:
    code = """
import octavo.sycl
from octavo import sycl
print(sycl.mem_get_info(), sycl.mem_get_info(0), sycl.available_memory(), sycl.memory_allocated())
print(sycl.max_memory_reserved(), sycl.get_memory_limit(), dict(sycl.memory_stats()))
"""
    assert run(code, ONEAPI_DEVICE_SELECTOR="cuda:*").splitlines() == ["(0, 0) (0, 0) 0 0", "0 None {}"]


def test_torch_knows_the_device() -> None:
    assert torch.sycl is octavo.sycl and torch.sycl.is_available() and not octavo.sycl.why_missing()
    assert torch.accelerator.current_accelerator() == torch.device("sycl")
    assert torch.accelerator.device_count() == torch.sycl.device_count()
    assert torch.sycl.get_amp_supported_dtype() == [torch.bfloat16, torch.float16] and torch.sycl.is_bf16_supported()
    octavo.sycl.register()  # a second call does nothing


def test_info_shows_the_devices() -> None:
    assert f"sycl:0 {torch.sycl.get_device_name(0)}" in octavo.info.collect()["devices"]


def test_two_run_times_in_one_process_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "libsycl.so.8"
    command = ["c++", "-shared", "-fPIC", "-x", "c++", "/dev/null", "-Wl,-soname,libsycl.so.8", "-o", other]
    subprocess.run(command, check=True, timeout=60)
    code = """
import ctypes, sys
ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
import torch, octavo.sycl
print(torch.sycl.is_available(), octavo.sycl.why_missing())
"""
    said = run(code, other)
    assert said.startswith(f"False [kernels.sycl] two SYCL run times are loaded in this process: {other} and /"), said
    assert "libsycl.so.9" in said and "build Octavo" in said


def test_a_seed_before_the_import_is_for_the_device_too() -> None:
    code = """
import sys, torch
torch.manual_seed(int(sys.argv[1]))
import octavo.sycl
late = torch.rand(8, device="sycl")
torch.manual_seed(int(sys.argv[1]))
print(torch.sycl.initial_seed(), torch.equal(late, torch.rand(8, device="sycl")))
"""
    assert [run(code, seed) for seed in ("3", "4")] == ["3 True", "4 True"]


def test_compilers_of_devices_are_asked_for_exact_divisions_and_roots() -> None:
    """Those of GPUs round them to a near value by default, and ranks would then differ from those on other devices."""
    code = """
import ctypes, torch, octavo.sycl
torch.ones(8, device="sycl")
read = ctypes.CDLL(None).getenv
read.restype = ctypes.c_char_p
print(read(b"SYCL_PROGRAM_COMPILE_OPTIONS").decode())
"""
    assert run(code) == "-cl-fp32-correctly-rounded-divide-sqrt"


def test_options_of_the_environment_reach_the_compiler_of_the_device(tmp_path: Path) -> None:
    code = """
import torch, octavo, octavo.sycl
try:
    octavo.packbits(torch.ones(8, device="sycl"))
except RuntimeError as error:
    print("does not compile" in str(error))
"""
    options = dict(SYCL_PROGRAM_COMPILE_OPTIONS="-no-such-option", SYCL_CACHE_DIR=str(tmp_path))
    assert run(code, **options) == "True"
