# SPDX-License-Identifier: Apache-2.0
"""A user's own operators: the worked example, a package with a setup.py, and kernels from text."""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fork_server import run_code

import octavo.sycl
from octavo import build

EXAMPLE = Path(__file__).parents[3] / "examples" / "extension"
missing = octavo.sycl.why_missing()
needs_sycl = pytest.mark.skipif(bool(missing), reason=missing)

SCALE = """
#include "octavo/kernels/sycl/device.h"
OCTAVO_KERNEL scale(float* x, float by, std::int64_t count) {
  const std::int64_t i = octavo::sycl_code::item().get_global_id(0);
  if (i < count) x[i] *= by;
}
"""


def run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@needs_sycl
@pytest.mark.timeout(400)
def test_the_example_is_built_and_equals_torch_on_cpu_and_sycl(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    run_file = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"
    exit_code, said, complaint = run_code(run_file, EXAMPLE / "run.py", timeout_s=380)
    assert exit_code == 0, complaint
    assert said.splitlines() == [f"{device}: equal to torch, bit by bit" for device in ("cpu", "sycl")]


@needs_sycl
@pytest.mark.timeout(400)
def test_an_operator_reaches_the_queue_of_the_current_stream(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    source = tmp_path / "doubled.cpp"
    source.write_text(
        "#include <ATen/ops/empty_like.h>\n#include <octavo/sycl.h>\n#include <torch/library.h>\n"
        "at::Tensor copied(const at::Tensor& x) {\n"
        "  at::Tensor out = at::empty_like(x);\n"
        "  sycl::queue queue = octavo::get_current_queue(x.device());\n"
        "  auto copy = queue.memcpy(out.mutable_data_ptr(), x.const_data_ptr(), x.nbytes());\n"
        "  if (x.is_cpu()) copy.wait_and_throw();\n"
        "  return out;\n}\n"
        'TORCH_LIBRARY(octavo_test_queue, m) { m.def("copied(Tensor x) -> Tensor"); }\n'
        'TORCH_LIBRARY_IMPL(octavo_test_queue, CompositeExplicitAutograd, m) { m.impl("copied", copied); }\n'
    )
    build.load("octavo_test_queue", [source], sycl=True)
    for device in ("cpu", "sycl"):
        x = torch.randn(1000).to(device)
        with torch.Stream(device) if device == "sycl" else contextlib.nullcontext():
            assert torch.equal(torch.ops.octavo_test_queue.copied(x * 2) + 1, x * 2 + 1)


@pytest.mark.timeout(400)
def test_a_package_is_built_by_the_class_that_the_accelerator_names(tmp_path, monkeypatch):
    monkeypatch.setenv("CFLAGS", "-O0 -g0")  # Python's own -O3 takes twice as long
    (tmp_path / "one.sycl").write_text("// the device's half\n")
    # uses Python's own interface, because torch's takes three times as long to compile
    (tmp_path / "one.cpp").write_text(
        "#include <Python.h>\n#include <ATen/ops/ones.h>\n#include <octavo/packbits.h>\n"
        "extern const char* const one_sycl;\n"
        "static PyObject* packed(PyObject*, PyObject*) {\n"
        "  const at::Tensor bits = octavo::packbits(at::ones({9}), 9, 0);\n"
        "  return PyBytes_FromStringAndSize(static_cast<const char*>(bits.const_data_ptr()), bits.numel());\n}\n"
        'static PyMethodDef functions[] = {{"packed", packed, METH_NOARGS, ""}, {}};\n'
        'static PyModuleDef module = {PyModuleDef_HEAD_INIT, "one", "", -1, functions};\n'
        "PyMODINIT_FUNC PyInit_one() {\n"
        "  PyObject* one = PyModule_Create(&module);\n"
        '  PyModule_AddStringConstant(one, "device_source", one_sycl);\n'
        "  return one;\n}\n"
    )
    (tmp_path / "setup.py").write_text(
        "from setuptools import setup\nimport octavo\nfrom octavo.build import extension\n"
        "build_ext = octavo.get_accelerator().build_extension()\n"
        'setup(name="one", ext_modules=[extension("one", ["one.cpp", "one.sycl"])],'
        ' cmdclass={"build_ext": build_ext.with_options(use_ninja=False)})\n'
    )
    run(sys.executable, "setup.py", "-q", "build_ext", "--inplace", cwd=tmp_path)
    program = (
        "import sys, torch; sys.path.insert(0, sys.argv[1]); import one; print(list(one.packed()), one.device_source)"
    )
    exit_code, said, complaint = run_code(program, tmp_path)
    assert exit_code == 0, complaint
    assert said.strip() == "[255, 128] // the device's half"


def test_sources_that_cannot_be_built_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"\[build.load\] the source file .*nothing.cpp does not exist"):
        build.load("nothing", [tmp_path / "nothing.cpp"])
    for not_a_list in ("x.cpp", []):
        with pytest.raises(ValueError, match="expected a list of source files"):
            build.load("nothing", not_a_list)
    with pytest.raises(ValueError, match="same name, among same, same"):
        build._with_embedded(["one/same.sycl", "two/same.sycl"], tmp_path)
    (tmp_path / "not-a-name.sycl").write_text("")
    with pytest.raises(ValueError, match=r"the name of .*not-a-name\.sycl is not a C\+\+ identifier"):
        build._embed(tmp_path / "not-a-name.sycl", tmp_path)
    (tmp_path / "quoted.sycl").write_text('const char* x = R"__octavo__()__octavo__";')
    with pytest.raises(ValueError, match=r"quoted\.sycl contains '\)__octavo__'"):
        build._embed(tmp_path / "quoted.sycl", tmp_path)


@needs_sycl
@pytest.mark.parametrize("device", ["cpu", "sycl"])
def test_a_kernel_from_text_runs_in_order_with_torch(device):
    kernel = octavo.SyclKernel(SCALE, "scale")
    x = torch.arange(1000, dtype=torch.float32, device=device)
    y = x + 1
    kernel(4, 256, y, 0.5, y.numel())
    assert torch.equal((y * 2).cpu(), torch.arange(1000, dtype=torch.float32) + 1)
    kernel(4, 256, y, ctypes.c_float(2), ctypes.c_int64(1))
    assert y[:2].tolist() == [1.0, 1.0]


@needs_sycl
def test_a_kernel_that_cannot_run_says_why():
    x = torch.ones(8)
    with pytest.raises(ValueError, match=r"the source of scale does not compile for .*: .*error: .*undeclared"):
        octavo.SyclKernel(SCALE.replace("by;", "nothing;"), "scale")(1, 8, x, 1.0, 8)
    with pytest.raises(ValueError, match="the source has no kernel other of C linkage"):
        octavo.SyclKernel(SCALE, "other")(1, 8, x, 1.0, 8)
    kernel = octavo.SyclKernel(SCALE, "scale")
    with pytest.raises(ValueError, match="expected 3 arguments for scale, got 2"):
        kernel(1, 8, x, 1.0)
    with pytest.raises(ValueError, match="expected tensors of one device, got no tensor"):
        kernel(1, 8, 1.0, 8)
    with pytest.raises(
        ValueError, match=r"scale cannot be launched with a pointer, a value of 8 bytes, a value of 8 bytes"
    ):
        kernel(1, 8, x, 1, 8)
    for view in (torch._neg_view(x), torch.complex(x, x).conj()):
        with pytest.raises(ValueError, match="a view of values that are still to be conjugated or negated"):
            kernel(1, 8, view, 1.0, 8)
    with pytest.raises(ValueError, match="group_size must be an int from 1"):
        kernel(1, 0, x, 1.0, 8)
    with pytest.raises(ValueError, match="groups must be an int from 0"):
        kernel(-1, 8, x, 1.0, 8)
    with pytest.raises(ValueError, match="expected a contiguous tensor"):
        kernel(1, 8, x[::2], 1.0, 4)
    with pytest.raises(ValueError, match="expected an int of 64 bits"):
        kernel(1, 8, x, 1.0, 2**63)
    with pytest.raises(TypeError, match="a value of ctypes, got str"):
        kernel(1, 8, x, "1", 8)
    assert x.tolist() == [1.0] * 8
