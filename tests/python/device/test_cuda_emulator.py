# SPDX-License-Identifier: Apache-2.0
"""The CUDA back end in training: in the place of SYCL's, on the emulated driver and compiler of tests/cuda/emulator.

torch's own device `cuda` needs a GPU. The device `sycl` runs on the back end that it is given, with its kernels,
memory, queues and events.
"""

import os
from pathlib import Path

import pytest
from devices_own_tests import LIBRARIES, ROOT, build, run, run_tests

PLUGIN = LIBRARIES / "liboctavo_cuda.so"


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Returns the environment in which CUDA is the emulator."""
    folder = tmp_path_factory.mktemp("cuda_emulator")
    own = [ROOT / "tests" / "cuda" / "emulator" / f"{name}.cpp" for name in ("block", "device", "driver")]
    queue = ROOT / "tests" / "fake_device" / "queue.cpp"
    build(folder / "libcuda.so.1", [*own, queue])
    compiler = os.environ.get("CXX", "c++")
    build(
        folder / "libnvrtc.so.13",
        [ROOT / "tests" / "cuda" / "emulator" / "nvrtc.cpp"],
        f'-DCXX_COMPILER="{compiler}"',
        f'-DSOURCE_FOLDER="{ROOT}"',
    )
    return {"LD_LIBRARY_PATH": str(folder), "OCTAVO_CUDA_CACHE": str(folder / "cache")}


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
