# SPDX-License-Identifier: Apache-2.0
"""The CUDA back end in training: in the place of SYCL's, on the emulated driver and compiler of tests/cuda/emulator.

torch's own device `cuda` needs a GPU. The device `sycl` runs on the back end that it is given, with its kernels,
memory, queues and events.
"""

import os
import shutil
from pathlib import Path

import pytest
from devices_own_tests import LIBRARIES, ROOT, build, changed_s, run, run_tests

PLUGIN = LIBRARIES / "liboctavo_cuda.so"


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Returns the environment in which CUDA is the emulator."""
    folder = tmp_path_factory.mktemp("cuda_emulator")
    own = [ROOT / "tests" / "cuda" / "emulator" / f"{name}.cpp" for name in ("block", "device", "driver")]
    queue = ROOT / "tests" / "fake_device" / "queue.cpp"
    driver = build(folder / "libcuda.so.1", [*own, queue])
    compiler = os.environ.get("CXX", "c++")
    nvrtc = build(
        folder / "libnvrtc.so.13",
        [ROOT / "tests" / "cuda" / "emulator" / "nvrtc.cpp"],
        f'-DCXX_COMPILER="{compiler}"',
        f'-DSOURCE_FOLDER="{ROOT}"',
    )
    cache = folder / "cache"
    cache.mkdir()
    newest = changed_s()
    # What the C++ tests have compiled. The file of a program holds its whole source, but for what the emulator adds.
    for program in (ROOT / "build").glob("cp*/tests/cuda/emulator/cache/*.program"):
        if program.stat().st_mtime > newest:
            shutil.copy(program, cache)
    return {"LD_LIBRARY_PATH": f"{driver.parent}:{nvrtc.parent}", "OCTAVO_CUDA_CACHE": str(cache)}


@pytest.mark.timeout(600)
def test_the_devices_own_tests(emulator: dict[str, str]) -> None:
    run_tests(PLUGIN, ["own_kernels", "paged_states", "arena"], **emulator)


def test_octavo_info_says_what_the_back_end_is(emulator: dict[str, str]) -> None:
    code = "import octavo; print([b for b in octavo._C.backends() if dict(b)['name'] == 'cuda'])"
    assert "'available': True" in run(PLUGIN, "-c", code, **emulator)


def test_without_a_driver_the_reason_says_so(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_bytes(b"")  # in the place of a driver that this machine may have
    code = "import octavo; print(octavo._C.backends())"
    output = run(PLUGIN, "-c", code, LD_LIBRARY_PATH=str(tmp_path))
    assert "[kernels.cuda] NVIDIA's driver is not installed, or cannot be loaded: " in output


def test_a_child_of_a_process_that_has_looked_for_devices_is_told_to_be_spawned(emulator: dict[str, str]) -> None:
    code = """
import ctypes, os, sys
from octavo import _C
_C.backends()  # initializes the driver, which cannot be used in a forked child
child = os.fork()
if child == 0:
    library = ctypes.CDLL(os.path.join(os.path.dirname(_C.__file__), "lib", "liboctavo_core.so"))
    library.cget_managed_ptr.restype = ctypes.c_void_p
    library.cget_managed_ptr.argtypes = [ctypes.c_size_t]
    library.octavo_last_error.restype = ctypes.c_char_p
    is_refused = library.cget_managed_ptr(4096) is None
    print(library.octavo_last_error().decode(), flush=True)
    os._exit(0 if is_refused else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    assert "CUDA was used before this process was forked" in run(PLUGIN, "-c", code, **emulator)
