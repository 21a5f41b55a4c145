# SPDX-License-Identifier: Apache-2.0
"""Optimizers whose state is larger than the memory that is allowed, or in files."""

import re
from pathlib import Path

import pytest
from fork_server import run_code

TRAIN = """
import resource, sys, torch
from octavo import _C
from octavo.optim import AdamW, PagedAdamW
torch.manual_seed(0)
sizes = [3 << 20, 2 << 20, 5 << 20, 1 << 20]  # elements: 88 MiB of state in float32
parameters = [torch.nn.Parameter(torch.randn(size)) for size in sizes]
for parameter in parameters:
    parameter.grad = torch.randn_like(parameter)
expected = [parameter.detach().clone() for parameter in parameters]
used = next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmData"))
def train(optimizer):
    for _ in range(3):
        optimizer.step()
resource.setrlimit(resource.RLIMIT_DATA, (used + (48 << 20), resource.RLIM_INFINITY))
try:
    train(AdamW(parameters))
except (MemoryError, RuntimeError) as refused:
    assert "memory" in str(refused), refused
else:
    raise SystemExit("expected that the state does not fit")
for parameter, before in zip(parameters, expected, strict=True):
    assert torch.equal(parameter, before), "a step was made in part"
paged = PagedAdamW(parameters, page_dir=sys.argv[1])
train(paged)
assert _C.arena_stats()["file"]["live_bytes"] >= 8 * sum(sizes), _C.arena_stats()
resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY,) * 2)
for tensor, parameter in zip(expected, parameters, strict=True):
    tensor.grad = parameter.grad
train(AdamW(expected))
assert all(torch.equal(a, b) for a, b in zip(parameters, expected, strict=True))
print("trained")
"""


def test_state_in_files_trains_where_state_in_memory_does_not_fit(tmp_path: Path) -> None:
    """RLIMIT_DATA counts ordinary memory, but not mapped files."""
    status, out, errors = run_code(TRAIN, tmp_path, OMP_NUM_THREADS="1")
    assert (status, out.strip()) == (0, "trained"), errors
    assert not list(tmp_path.iterdir())


# ramfs can make no holes in files, like NFS before 4.2.
LOADS = """
import copy, ctypes, os, sys, torch
from octavo.optim import PagedAdamW
NEW_NAMESPACE, PRIVATE = 0x20000, 0x44000  # CLONE_NEWNS; MS_REC | MS_PRIVATE
libc, folder = ctypes.CDLL(None, use_errno=True), sys.argv[1]
def require(result):
    if result != 0:
        raise SystemExit(f"may not mount: {os.strerror(ctypes.get_errno())}")
require(libc.unshare(NEW_NAMESPACE))
require(libc.mount(b"none", b"/", None, PRIVATE, None))
require(libc.mount(b"none", folder.encode(), b"ramfs", 0, None))
def bytes_of_file():
    links = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
    (file,) = (link for link in links if os.path.exists(link) and os.readlink(link).startswith(folder))
    return os.stat(file).st_size
parameter = torch.nn.Parameter(torch.ones(1 << 18))
parameter.grad = torch.ones_like(parameter)
optimizer = PagedAdamW([parameter], page_dir=folder)
optimizer.step()
saved = copy.deepcopy(optimizer.state_dict())
sizes = set()
for _ in range(4):
    optimizer.load_state_dict(saved)
    sizes.add(bytes_of_file())
assert len(sizes) == 1, sizes
assert torch.equal(optimizer.state[parameter]["exp_avg"], saved["state"][0]["exp_avg"])
other = torch.nn.Parameter(torch.ones(1 << 18))
other.grad = torch.zeros_like(other)
optimizer.add_param_group({"params": [other]})
optimizer.step()
assert sizes == {bytes_of_file()}
assert not optimizer.state[other]["exp_avg"].any(), "what was in the file before"
print("loaded")
"""


def test_states_take_the_room_of_earlier_ones_where_files_have_no_holes(tmp_path: Path) -> None:
    status, out, errors = run_code(LOADS, tmp_path, OMP_NUM_THREADS="1")
    if refused := re.search("may not mount: .*", errors):
        pytest.skip(refused[0])
    assert (status, out.strip()) == (0, "loaded"), errors
