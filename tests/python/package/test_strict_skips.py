# SPDX-License-Identifier: Apache-2.0
"""A skip that nobody expects fails continuous integration, in pytest and in ctest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def run_pytest(folder: Path, text: str, *options: str) -> tuple[int, str]:
    (folder / "test_it.py").write_text(f"import pytest\n\n{text}\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", folder, "-p", "strict_skips", *options, folder],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("options", [(), ("-p", "xdist", "-n", "1")], ids=["alone", "xdist"])
def test_an_unexpected_skip_fails(tmp_path, options):
    (tmp_path / "test_module.py").write_text("import pytest\n\npytest.skip('no module', allow_module_level=True)\n")
    text = (
        "def test_body():\n    pytest.skip('no body')\n\n"
        "@pytest.mark.skip(reason='no mark')\ndef test_mark():\n    pass"
    )
    code, said = run_pytest(tmp_path, text, "-rfE", "--continue-on-collection-errors", *options)
    assert code != 0 and "1 failed, 2 errors" in said
    assert all(f"skipped unexpectedly: Skipped: no {what}" in said for what in ("body", "mark", "module"))


def test_an_expected_skip_and_an_expected_failure_pass(tmp_path):
    skip = 'def test_it():\n    pytest.skip("the host\'s allocator keeps no account of its tensors")'
    assert run_pytest(tmp_path, skip)[0] == 0
    assert run_pytest(tmp_path, "@pytest.mark.xfail\ndef test_it():\n    assert False")[0] == 0


CTEST_LOG = """
  7/9 Test  #7: octavo_core_tests.avx512 .......***Skipped   0.01 sec
The following tests did not run:
\t  7 - octavo_core_tests.avx512 (Skipped)
\t  8 - octavo_core_tests.sycl (Skipped)
"""


@pytest.mark.parametrize(
    ("flags", "unexpected"),
    [
        ("sse2 avx2 avx512f avx512bw avx512vl avx512dq", ["avx512", "sycl"]),
        ("sse2 avx2 avx512f", ["sycl"]),
    ],
)
def test_ctest_may_skip_the_instruction_sets_that_this_cpu_lacks_alone(tmp_path, flags, unexpected):
    log = tmp_path / "log"
    log.write_text(CTEST_LOG)
    done = subprocess.run(
        ["bash", "-c", f"source {ROOT}/tools/lib.sh; unexpected_skips '{flags}' <{log}"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert [line.split(".")[1] for line in done.stdout.splitlines()] == unexpected
