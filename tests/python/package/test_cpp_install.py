# SPDX-License-Identifier: Apache-2.0
"""The installed C++ library: find_package(octavo) and its headers work, and its libraries find each other."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest
from octavo.built_with import TORCH

import octavo

EXAMPLES = Path(__file__).parents[3] / "examples" / "cpp"
PREFIX = Path(octavo.cmake_dir()).parents[2]
#: A PATH with cmake and ninja, which are beside this Python.
TOOLS = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
#: The modules of octavo::core; their headers compile without torch.
CORE_MODULES = ("rules", "kernels")

pytestmark = pytest.mark.timeout(300)


def run(*command: str | Path, ok: bool = True, **environment: str) -> str:
    """Runs a command without hints from the outside. Returns everything that it printed."""
    hints = ("Torch_DIR", "octavo_DIR", "CMAKE_PREFIX_PATH", "LD_LIBRARY_PATH", "PYTHONPATH")
    tools = {"PATH": TOOLS}
    clean = {name: value for name, value in os.environ.items() if name not in hints}
    done = subprocess.run(
        [str(word) for word in command],
        env={**clean, **tools, **environment},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert (done.returncode == 0) == ok, f"{command} gave {done.returncode}:\n{done.stdout}"
    return done.stdout


def configure(source: Path, build: Path, package: str | Path, ok: bool = True, **environment: str) -> str:
    return run("cmake", "-S", source, "-B", build, "-G", "Ninja", f"-Doctavo_DIR={package}", ok=ok, **environment)


def project(folder: Path, *lines: str) -> Path:
    folder.mkdir()
    head = ("cmake_minimum_required(VERSION 3.25)", "project(consumer LANGUAGES CXX)")
    (folder / "CMakeLists.txt").write_text("\n".join((*head, *lines, "")))
    return folder


def test_the_examples_build_with_the_folder_that_the_command_line_names_and_run(tmp_path):
    package = run(sys.executable, "-m", "octavo", "--cmake-dir").strip()
    assert package == octavo.cmake_dir()
    configure(EXAMPLES, tmp_path, package)
    run("cmake", "--build", tmp_path)
    assert "4000 bytes became 125\nevery sign came back" in run(tmp_path / "pack_signs")
    assert "step 20: the loaded run is equal" in run(tmp_path / "adamw_8bit")
    assert "4000 bytes became 516\n" in run(tmp_path / "encode_int4")
    assert "reference: 4000 bytes" in run(tmp_path / "encode_int4", OCTAVO_BACKEND="reference")
    assert "expected OCTAVO_ISA to be one of" in run(tmp_path / "encode_int4", ok=False, OCTAVO_ISA="mmx")


def chains_of(headers: list[str], closure: Callable[[str], set[str]]) -> list[list[str]]:
    """Shares headers out to lists in which each one includes all that come before it."""
    chains: list[list[str]] = []
    for header in sorted(headers, key=lambda name: (len(closure(name)), name)):
        ends = [chain for chain in chains if chain[-1] in closure(header)]
        if ends:
            max(ends, key=lambda chain: len(closure(chain[-1]))).append(header)
        else:
            chains.append([header])
    return chains


def test_every_installed_header_compiles_alone(tmp_path):
    """By the compiler itself and without code; the examples show that CMake's targets name these folders.

    A unit begins with a header, and goes on with one that includes it, and so on. What a header finds there is then
    what it includes itself, as if it were alone, and a compiler need not start for each.
    """
    import torch

    include, torchs = PREFIX / "include", Path(torch.__file__).parent / "include"
    needs_sycl = "octavo/sycl.h"  # compiled by test_build.py
    texts = {str(path.relative_to(include)): path.read_text() for path in include.rglob("*.h")}
    assert "octavo/packbits.h" in texts and "octavo/rules/sign_bits.h" in texts
    compiler = [os.environ.get("CXX", "c++"), "-std=c++20", "-isystem", include]
    on_torch = [*compiler, "-isystem", torchs, "-isystem", torchs / "torch/csrc/api/include"]
    tensors, aten = tmp_path / "Tensor.h", tmp_path / "ATen.h"  # precompiled: minutes otherwise
    for given, name in ((tensors, "ATen/core/Tensor.h"), (aten, "ATen/ATen.h")):
        given.write_text(f"#include <{name}>\n")
        run(*on_torch, "-x", "c++-header", given, "-o", f"{given}.gch")

    @cache
    def closure(header: str) -> set[str]:
        """Returns the headers of ours that a header includes, directly or by others."""
        direct = re.findall(r'^#include "(octavo/.+)"', texts.get(header, ""), re.MULTILINE)
        return set(direct).union(*map(closure, direct))

    for header in {name for name in texts if name.count("/") == 1} - {"octavo/export.h"}:
        assert "octavo/kernels/error.h" in closure(header), f"{header} does not declare octavo::Error"
    assert "octavo/codec/registry.h" in closure("octavo/deepcompile.h")  # makes EngineOptions::gather_codec
    del texts[needs_sycl]

    def beginning(header: str) -> list[str | Path]:
        """Returns how the compiler begins for a header."""
        if header.split("/")[1] in CORE_MODULES:
            return compiler
        # c10d's headers all begin with ATen/ATen.h: seven of their eight seconds.
        has_c10d = any(
            "#include <torch/csrc/distributed/" in texts.get(name, "") for name in {header} | closure(header)
        )
        return [*on_torch, "-include", aten if has_c10d else tensors]

    groups: dict[tuple[str | Path, ...], list[str]] = {}
    for header, text in texts.items():
        if "at::" in text:  # which the precompiled header would give it
            assert re.search(r'#include ("octavo/|<ATen/)', text), f"{header} uses ATen and does not include it"
        groups.setdefault(tuple(beginning(header)), []).append(header)

    own_dc, core = tmp_path / "own_dc.cpp", tmp_path / "core.cpp"
    own_dc.write_text(
        "#define OCTAVO_NO_DC\n#include <octavo/octavo.h>\nnamespace dc { octavo::dc::EngineOptions mine; }\n"
    )
    core.write_text("#include <octavo/managed.h>\nstatic_assert(sizeof(octavo::Error) > 0);\n")
    commands = [[*on_torch, "-include", aten, "-fsyntax-only", own_dc], [*compiler, "-fsyntax-only", core]]
    for begin, headers in groups.items():
        for chain in chains_of(headers, closure):
            unit = tmp_path / f"unit-{len(commands)}.cpp"
            # twice: a header must also bear to be included again
            unit.write_text("".join(f"#include <{header}>\n" * 2 for header in chain))
            commands.append([*begin, "-fsyntax-only", unit])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda command: run(*command), commands))


def test_the_core_needs_no_torch_and_the_rest_says_that_it_does(tmp_path):
    """The package is copied to a place without torch, where no Python has torch."""
    prefix = tmp_path / "elsewhere" / "octavo"
    shutil.copytree(PREFIX / "share", prefix / "share")
    shutil.copytree(PREFIX / "lib", prefix / "lib")
    package = prefix / "share" / "cmake" / "octavo"
    (tmp_path / "bin").mkdir()
    for tool in ("cmake", "ninja", "c++"):
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool, path=TOOLS))
    (tmp_path / "bin" / "python3").symlink_to("/bin/false")
    path = {"PATH": os.pathsep.join([str(tmp_path / "bin"), os.defpath])}

    core = project(tmp_path / "core", "find_package(octavo REQUIRED COMPONENTS core)")
    configure(core, tmp_path / "core-build", package, **path)
    everything = project(tmp_path / "all", "find_package(octavo REQUIRED)")
    said = configure(everything, tmp_path / "all-build", package, ok=False, **path)
    assert "octavo::octavo needs torch" in " ".join(said.split())

    import torch

    given = f"-DTorch_DIR={Path(torch.utils.cmake_prefix_path) / 'Torch'}"
    run("cmake", "-S", everything, "-B", tmp_path / "all-build", "-G", "Ninja", given, **path)


def test_another_release_of_torch_is_refused(tmp_path):
    torch = tmp_path / "torch"
    for header, text in {
        "ATen/ATen.h": "",
        "torch/headeronly/version.h": "".join(
            f"#define TORCH_VERSION_{part} {number}\n" for part, number in (("MAJOR", 2), ("MINOR", 12), ("PATCH", 1))
        ),
    }.items():
        path = torch / "include" / header
        path.parent.mkdir(parents=True)
        path.write_text(text)
    source = project(tmp_path / "consumer", "find_package(octavo REQUIRED)")
    given = ("-G", "Ninja", f"-Doctavo_DIR={octavo.cmake_dir()}", f"-DTorch_DIR={torch / 'share/cmake/Torch'}")
    said = " ".join(run("cmake", "-S", source, "-B", tmp_path / "build", *given, ok=False).split())
    assert f"was built with torch {TORCH.partition('+')[0]}, and {torch}" in said and "is torch '2.12.1'" in said


def test_an_unknown_component_is_refused(tmp_path):
    source = project(tmp_path / "consumer", "find_package(octavo REQUIRED COMPONENTS fpga)")
    assert "fpga" in configure(source, tmp_path / "build", octavo.cmake_dir(), ok=False)


def test_an_optional_component_may_be_missing(tmp_path):
    source = project(
        tmp_path / "consumer",
        "find_package(octavo COMPONENTS core OPTIONAL_COMPONENTS fpga)",
        'message(STATUS "found: ${octavo_FOUND} core: ${octavo_core_FOUND} fpga: ${octavo_fpga_FOUND}.")',
    )
    assert "found: 1 core: TRUE fpga: ." in configure(source, tmp_path / "build", octavo.cmake_dir())


def test_the_libraries_find_each_other_and_torch_where_they_lie():
    for library in (Path(octavo._C.__file__), *sorted((PREFIX / "lib").glob("liboctavo*.so"))):
        assert "not found" not in run("ldd", library), library


def test_nothing_installed_points_into_the_build_or_the_sources():
    root = str(EXAMPLES.parents[1])
    site = str(PREFIX.parent)
    for path in (PREFIX / "share").rglob("*.cmake"):
        lines = [line for line in path.read_text().splitlines() if root in line and site not in line]
        assert not lines, f"{path}: {lines}"
