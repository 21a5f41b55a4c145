# SPDX-License-Identifier: Apache-2.0
"""`octavo bench allreduce`."""

import json

import pytest
from fork_server import run_code, run_ranks
from typer.testing import CliRunner

from octavo.bench import jobs
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


def first_link_alone(command: list[str], nproc: int, link: str | None) -> str:
    if link == "10mbit":
        raise RuntimeError("[bench.jobs] a rank was lost")
    return json.dumps([dict(kib=64, plan="torch", milliseconds=1.0, times_faster_than_torch=1.0)])


def test_what_was_measured_before_a_job_failed_is_shown_and_written(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "why_no_hosts", lambda: None)
    monkeypatch.setattr(jobs, "run_job", first_link_alone)
    monkeypatch.delenv("RANK", raising=False)
    file = tmp_path / "rows.json"
    done = CliRunner().invoke(app, ["allreduce", "dense", "--link=1gbit", "--link=10mbit", f"--json={file}"])
    assert done.exit_code == 1 and "error: [bench.jobs] a rank was lost" in done.stderr
    assert "1gbit" in done.stdout
    assert [row["link"] for row in json.loads(file.read_text())] == ["1gbit"]


PRINTED_TO_A_FULL_DISK = """
import sys
from octavo.bench import jobs
from octavo.bench.cli import app
row = '[{"kib": 64, "plan": "torch", "milliseconds": 1.0, "times_faster_than_torch": 1.0}]'
jobs.run_job = lambda *_: row
sys.stdout = open("/dev/full", "w")
app(["allreduce", "dense", *sys.argv[1:]])
"""


def test_figures_are_written_where_the_table_cannot_be_printed(tmp_path):
    file = tmp_path / "rows.json"
    exit_code, _, complaint = run_code(PRINTED_TO_A_FULL_DISK, f"--json={file}", RANK="")
    assert exit_code == 1
    assert complaint.startswith("error: [console] what this command prints cannot be written to stdout: No space left")
    assert json.loads(file.read_text())[0]["plan"] == "torch"


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
