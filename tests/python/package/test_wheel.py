# SPDX-License-Identifier: Apache-2.0
"""The wheel in a clean environment that has only torch and what torch requires: no NumPy, no typer."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from train_runs import clean_environment

import octavo
from octavo.version import require_built_torch

ROOT = Path(__file__).parents[3]
PYTHON_TAG = f"cp{sys.version_info.major}{sys.version_info.minor}"
#: Where tools/setup has compiled the libraries: the wheel packs them and compiles nothing again.
BUILD_DIR = ROOT / "build" / f"{PYTHON_TAG}-{PYTHON_TAG}-{re.sub('[-.]', '_', sysconfig.get_platform())}"

pytestmark = pytest.mark.timeout(600)

STEP = """
import importlib.util, pathlib, sys
for absent in ("numpy", "typer", "rich", "transformers", "tokenizers", "safetensors", "matplotlib"):
    assert importlib.util.find_spec(absent) is None, absent

import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import octavo

assert octavo.packbits(torch.tensor([1.0, -1, 0, -0.0, 2, -3, torch.nan, torch.inf])).tolist() == [0xAB]
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(64, 64)
ddp = DistributedDataParallel(model)
handle = octavo.compress(ddp, "int4+ef")
optimizer = torch.optim.AdamW(model.parameters())
ddp(torch.randn(8, 64) + dist.get_rank()).square().mean().backward()
optimizer.step()
assert 0 < handle.stats()["wire_bytes"] < handle.stats()["dense_bytes"]
model = torch.nn.Linear(64, 64)
engine = octavo.initialize(model, torch.optim.AdamW(model.parameters()), {"zero_stage": 3})
engine.backward(engine(torch.randn(8, 64)).square().mean())
engine.step()
for call in (engine.save_checkpoint, engine.load_checkpoint):
    try:
        call(sys.argv[1] + "/checkpoint")
        raise AssertionError("torch.distributed.checkpoint does without NumPy now: octavo.zero.checkpoint may, too")
    except ImportError as error:
        assert "pip install numpy" in str(error), error
engine.export_safetensors(sys.argv[1] + "/model.safetensors")
with engine.gathered():
    weight = model.weight.tolist()
# Not compared by a collective: a thread of Gloo's drops the last one's tensors, and torch 2.13 ends by std::terminate
# where Python has ended before.
pathlib.Path(sys.argv[1], f"weight{dist.get_rank()}").write_text(str(weight))
dist.destroy_process_group()
"""


def run(*command: str | Path, ok: bool = True) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=ROOT,
        env=clean_environment(OMP_NUM_THREADS="1", PYTHONPATH="", PATH=_tools()),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert (done.returncode == 0) == ok, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def clean_python(tmp_path_factory) -> Iterator[Path]:
    """Returns the Python of a new environment with links to torch, and Octavo from its wheel. No package index is
    used. All tests that use it are marked as the one that starts ranks: a parallel run then builds it in one worker."""
    folder = tmp_path_factory.mktemp("clean")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [f"--config-settings=build-dir={BUILD_DIR}", "--config-settings=cmake.define.OCTAVO_TESTS=OFF"]
    run(*pip, "wheel", "--no-build-isolation", "--no-deps", *build, "--wheel-dir", folder, ROOT)
    (wheel,) = folder.glob("octavo-*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "env")
    python = folder / "env" / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    for package in _with_requirements("torch"):
        _link(package, site)
    run(*pip, "--python", python, "install", "--no-index", wheel)  # fails where the wheel requires more than torch
    yield python


@pytest.mark.ranks
def test_packbits_a_compressed_step_and_zero_need_torch_alone(clean_python, tmp_path):
    script = tmp_path / "step.py"
    script.write_text(STEP)
    run(clean_python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script, tmp_path)
    first, second = (tmp_path / f"weight{rank}" for rank in range(2))
    assert first.read_text() == second.read_text()


@pytest.mark.ranks
@pytest.mark.parametrize("command", ["octavo", "python -m octavo"])
def test_the_command_says_what_to_install(clean_python, command):
    words = command.split()
    said = run(clean_python.parent / words[0], *words[1:], "info", ok=False)
    assert re.search(  # the error is below torch's own warning that there is no NumPy
        r"^error: \[cli\] the command octavo needs the package (typer|rich), which is not installed: "
        r"pip install --no-build-isolation '\.\[train\]' in Octavo's folder installs all that it needs$",
        said,
        re.MULTILINE,
    )


@pytest.mark.ranks
def test_a_wheel_of_another_torch_says_so_before_it_loads_its_libraries(clean_python):
    pretend = (
        "import sys, torch; torch.__version__ = '2.11.0+cu126'\ntry: import octavo\nexcept ImportError as e: print(e)"
    )
    *_, sentence, is_loaded = run(clean_python, "-c", pretend + "\nprint('octavo._C' in sys.modules)").splitlines()
    assert is_loaded == "False"
    built = re.escape(octavo.built_with.TORCH)
    assert re.match(
        rf"\[version\.require_built_torch\] this Octavo was built against torch {built}, and torch 2\.11\.0\+cu126 is",
        sentence,
    )
    assert f"install torch=={octavo.built_with.TORCH.partition('+')[0]}" in sentence


def test_any_build_of_the_same_torch_will_do():
    release = octavo.built_with.TORCH.partition("+")[0]
    for build in ("", "+cpu", "+cu126", "+xpu"):
        require_built_torch(release + build)
    with pytest.raises(ImportError, match=r"torch 2\.13\.99 is installed"):
        require_built_torch("2.13.99")


def _tools() -> str:
    """Returns a PATH with cmake and ninja, which are beside this Python."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


def _with_requirements(name: str) -> list[Distribution]:
    """Returns an installed distribution and everything that it requires, without extras."""
    found, waiting = {}, [name]
    while waiting:
        name = waiting.pop()
        with contextlib.suppress(PackageNotFoundError):  # a requirement of another Python or another system
            if name not in found:
                found[name] = package = distribution(name)
                required = [line for line in package.requires or [] if "extra ==" not in line]
                waiting += [re.match(r"[\w.-]+", line)[0] for line in required]
    return list(found.values())


def _link(package: Distribution, site: Path) -> None:
    """Makes links to everything that a distribution has at the top level of its site-packages."""
    here = Path(str(package.locate_file("")))
    for top in {path.parts[0] for path in package.files or []} - {"..", "__pycache__"}:
        target = site / top
        if not target.exists():
            target.symlink_to(here / top)
