# SPDX-License-Identifier: Apache-2.0
"""The tests of the device `sycl`, run in a process of their own on another back end that takes SYCL's place."""

import os
import subprocess
import sys
from pathlib import Path

from patience import PATIENCE

from octavo import _C

ROOT = Path(__file__).parents[3]
LIBRARIES = Path(_C.__file__).parent / "lib"


def changed_s() -> float:
    """Returns when the sources of what back ends run on in the tests were last changed."""
    folders = [ROOT / "tests" / "fake_device", ROOT / "tests" / "cuda" / "emulator"]
    sources = [*(ROOT / "octavo").rglob("*.h"), *(path for folder in folders for path in folder.iterdir())]
    return max(path.stat().st_mtime for path in sources)


def build(library: Path, sources: list[Path], *options: str) -> Path:
    """Returns a shared library of the tests: the one that the C++ tests have built, or one compiled here where there is
    none that is newer than its sources."""
    for built in (ROOT / "build").glob(f"cp*/**/{library.name}"):
        if built.stat().st_mtime > changed_s():
            return built
    flags = ["-std=c++20", "-O1", "-ffp-contract=off", "-fPIC", "-shared", "-pthread", f"-I{ROOT}"]
    command = [os.environ.get("CXX", "c++"), *flags, *sources, *options, "-o", library]
    subprocess.run(command, check=True, timeout=PATIENCE * 100)
    return library


def run(plugin: Path, *command: str | Path, **environment: str) -> str:
    # The variable would make a pytest that runs there a worker of this one. Its ranks run beside those of the other
    # worker: few of its tests have any.
    outer = {name: value for name, value in os.environ.items() if name != "PYTEST_XDIST_WORKER"}
    done = subprocess.run(
        [sys.executable, *command],
        env={**outer, "OCTAVO_SYCL_PLUGIN": str(plugin), **environment},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE * 500,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout.strip()


def run_tests(plugin: Path, modules: list[str], **environment: str) -> None:
    plugins = ["-p", "no:cacheprovider", "-p", "strict_skips"]  # if the plug-in did not load, all would be skipped
    files = [ROOT / "tests" / "python" / "sycl" / f"test_sycl_{module}.py" for module in modules]
    run(plugin, "-m", "pytest", "-x", *plugins, *files, PYTHONPATH=str(ROOT / "tests" / "python"), **environment)
