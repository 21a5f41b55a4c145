# SPDX-License-Identifier: Apache-2.0
"""The device `sycl` on the two fake devices of tests/fake_device, which run late and have memory that the host cannot
read.

The device's own tests run there unchanged, in a process of their own. They find errors that a CPU device hides.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE

from octavo import _C

ROOT = Path(__file__).parents[3]
SYCL_TESTS = Path(__file__).parents[1] / "sycl"


@pytest.fixture(scope="session")
def fake_plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library, lib = tmp_path_factory.mktemp("fake_device") / "liboctavo_fake.so", Path(_C.__file__).parent / "lib"
    sources = sorted((ROOT / "tests" / "fake_device").glob("*.cpp"))
    options = ["-std=c++20", "-O1", "-ffp-contract=off", "-fPIC", "-shared", "-pthread", f"-I{ROOT}"]
    link = [f"-L{lib}", "-loctavo_core", f"-Wl,-rpath,{lib}"]
    command = [os.environ.get("CXX", "c++"), *options, *sources, *link, "-o", library]
    subprocess.run(command, check=True, timeout=PATIENCE * 100)
    return library


def run(plugin: Path, *command: str | Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "OCTAVO_SYCL_PLUGIN": str(plugin), **environment},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE * 500,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout.strip()


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
    # if the fake device did not load, all tests would be skipped
    plugins = ["-p", "no:cacheprovider", "-p", "strict_skips"]
    files = [SYCL_TESTS / f"test_sycl_{module}.py" for module in modules]
    run(fake_plugin, "-m", "pytest", "-x", *plugins, *files, PYTHONPATH=str(Path(__file__).parents[1]))


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
