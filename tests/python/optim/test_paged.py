# SPDX-License-Identifier: Apache-2.0
"""Optimizers whose state is larger than the memory that is allowed."""

from pathlib import Path

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
