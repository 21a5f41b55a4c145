# SPDX-License-Identifier: Apache-2.0
"""`octavo bench allreduce`."""

import json

import pytest
from fork_server import run_ranks
from typer.testing import CliRunner

from octavo.bench.cli import app

COMMAND = """
import sys
from octavo.bench.cli import app
app(["allreduce", *sys.argv[1:]])
"""


@pytest.mark.ranks
@pytest.mark.timeout(120)
def test_the_command_measures_its_job(tmp_path):
    file = tmp_path / "rows.json"
    options = ["--kib=4", "--kib=64", "--rounds=2", f"--json={file}"]
    done = run_ranks(2, COMMAND, "dense", "int4", *options, timeout_s=100, OMP_NUM_THREADS="1")
    assert [exit_code for exit_code, *_ in done] == [0, 0], done
    assert "faster than torch" in done[0][1] and done[1][1] == ""
    rows = json.loads(file.read_text())
    assert [(row["kib"], row["plan"]) for row in rows] == [
        (kib, plan) for kib in (4, 64) for plan in ("torch", "dense", "int4")
    ]
    assert all(row["milliseconds"] > 0 for row in rows)
    assert [row["times_faster_than_torch"] for row in rows if row["plan"] == "torch"] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("1bit", "there is no codec of this name"),
        ("int4+ef", "give int4, not int4+ef"),
        ("auto", "auto works by what it remembers: give another plan"),
        ("lsh:int4", "lsh:int4 works by what it remembers: give another plan"),
        ("int4;x=dense", "one tensor has no rules by name"),
        ("zero1", "octavo bench zero zero1"),
        ("outer:20/int4", "octavo bench ddp outer:20/int4"),
        ("--link=2gbit", "--link is one of"),
    ],
)
def test_what_cannot_be_measured_is_refused(argument, words):
    done = CliRunner().invoke(app, ["allreduce", argument])
    assert done.exit_code == 2 and "error: [" in done.output and words in done.output, done.output
