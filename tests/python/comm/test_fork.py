# SPDX-License-Identifier: Apache-2.0
"""A process that is forked from one with Octavo's threads and connections, as a DataLoader's workers are, frees what it
inherits. It has none of these threads, and must not wait for them."""

import pytest
from fork_server import run_code

MAKING = {
    "compress": "handle = octavo.compress(ddp, 'int4+ef', timeout_s=30.0)",
    "outer": "handle = octavo.Outer(model, optimizer, plan='int4+ef', every=1, timeout_s=30.0)",
    "zero": "handle = octavo.initialize(model, optimizer, {'zero_stage': 2, 'plan': 'int4+ef', 'timeout_s': 30.0})",
}
STEP = {
    "compress": "ddp(x).sum().backward()",
    "outer": "model(x).sum().backward(); handle.step()",
    "zero": "handle.backward(handle(x).sum()); handle.step()",
}
FORKING = """
import gc, os, signal, sys, time
import torch, torch.distributed as dist
import octavo
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ddp = torch.nn.parallel.DistributedDataParallel(model) if sys.argv[1] == "compress" else None
x = torch.randn(4, 64)
{making}
{step}
child = os.fork()
if child == 0:
    del ddp, handle, optimizer, model
    gc.collect()
    os._exit(0)
for _ in range(200):
    ended, status = os.waitpid(child, os.WNOHANG)
    if ended:
        break
    time.sleep(0.1)
else:
    os.kill(child, signal.SIGKILL)
    sys.exit("the child waits")
assert status == 0
{step}
print("both have ended")
"""


@pytest.mark.parametrize("what", MAKING)
def test_a_forked_child_frees_what_it_has_inherited(what: str) -> None:
    code = FORKING.format(making=MAKING[what], step=STEP[what])
    exit_code, said, complaint = run_code(code, what, timeout_s=50)
    assert (exit_code, said) == (0, "both have ended\n"), complaint


LETTING_GO = """
import os
import torch, torch.distributed as dist
import octavo
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(4, 64)
model(x).sum().backward()  # starts torch's own threads
before = len(os.listdir("/proc/self/task"))
{making}
{step}
during = len(os.listdir("/proc/self/task"))
del handle
print(during > before, len(os.listdir("/proc/self/task")) - before)
"""


def test_what_children_would_keep_is_still_let_go_of_here() -> None:
    code = LETTING_GO.format(making=MAKING["outer"], step=STEP["outer"])
    exit_code, said, complaint = run_code(code, timeout_s=50)
    assert (exit_code, said) == (0, "True 0\n"), complaint
