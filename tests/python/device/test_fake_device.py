# SPDX-License-Identifier: Apache-2.0
"""The device `sycl` on the two fake devices of tests/fake_device, which run late and have memory that the host cannot
read.

The device's own tests run there unchanged, in a process of their own. They find errors that a CPU device hides.
"""

from pathlib import Path

import pytest
from devices_own_tests import LIBRARIES, ROOT, build, run, run_tests


@pytest.fixture(scope="session")
def fake_plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("fake_device") / "liboctavo_fake.so"
    sources = sorted((ROOT / "tests" / "fake_device").glob("*.cpp"))
    return build(library, sources, f"-L{LIBRARIES}", "-loctavo_core", f"-Wl,-rpath,{LIBRARIES}")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "modules",
    [
        ["ddp", "own_kernels", "paged_states", "coalescing", "deepcompile"],
        ["compiled", "offload"],
        ["private_memory", "streams", "memory", "arena", "parameters", "operators", "training"],
    ],
    ids=["of_ranks", "of_graphs", "of_one_process"],
)
def test_the_devices_own_tests(fake_plugin: Path, modules: list[str]) -> None:
    run_tests(fake_plugin, modules)


def test_the_host_cannot_read_private_memory(fake_plugin: Path) -> None:
    code = """
import ctypes, torch, octavo.sycl
x = torch.sycl.empty(4, kind="device").copy_(torch.arange(4.0))
assert x.tolist() == [0, 1, 2, 3]
print("copied", flush=True)
ctypes.string_at(x.data_ptr(), 4)
"""
    with pytest.raises(AssertionError, match="copied"):
        run(fake_plugin, "-c", code)


def test_results_are_of_the_device_of_the_call_whichever_is_current(fake_plugin: Path) -> None:
    code = """
import torch, octavo.sycl
there = torch.arange(9.0, device="sycl:1").view(3, 3)
sparse = there.to_sparse()
assert (sparse + sparse).coalesce().to_dense().tolist() == [[0, 2, 4], [6, 8, 10], [12, 14, 16]]
before = torch.sycl.memory_allocated(0)
clone = torch._lazy_clone(there)
clone[0] = 7
assert torch.sycl.memory_allocated(0) == before and torch.sycl.current_device() == 0
print(sparse.device, clone.device)
"""
    assert run(fake_plugin, "-c", code) == "sycl:1 sycl:1"
