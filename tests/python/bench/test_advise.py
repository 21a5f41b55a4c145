# SPDX-License-Identifier: Apache-2.0
"""`octavo advise`: its conclusions from figures, and the command."""

import json
from dataclasses import replace

import pytest
from fork_server import run_ranks
from needs_hosts import needs_hosts
from typer.testing import CliRunner

from octavo.bench import advise
from octavo.bench.advise import Link, Report
from octavo.bench.advise_cli import app
from octavo.bench.ddp import ALONE, TORCH, Row, Size

DENSE_BYTES = 100_000_000


def row(plan: str, milliseconds: float, wire_bytes: int = DENSE_BYTES, codec_ms: float | None = None) -> Row:
    return Row(4, plan, milliseconds, milliseconds / 20, 500 / milliseconds, wire_bytes, 1.0, codec_ms)


def report_of(*rows: Row) -> Report:
    return Report(2, Link(1.0, 0.1), [row(ALONE, 20, 0), *rows])


def test_the_fastest_plan_is_named_with_its_figures():
    report = report_of(
        row(TORCH, 500), row("dense", 480), row("int4+ef", 110, 14_000_000, 9), row("sign+ef", 60, 4_000_000, 8)
    )
    assert advise.fastest(report).plan == "sign+ef"
    said = " ".join(advise.sentences(report))
    assert "sign+ef is the fastest on this link, which carries 1 Gbit/s with 0.1 ms of latency" in said
    assert "8.33 times as fast as torch's" in said
    assert "A step of 4 tokens per rank takes 60.0 ms with it, 20.0 ms without" in said


def test_local_steps_are_told_of_and_not_advised():
    report = report_of(row(TORCH, 500), row("sign+ef", 60, 4_000_000, 8), row("outer:20/sign+ef", 22, 200_000, 1))
    assert advise.fastest(report).plan == "sign+ef"
    assert "every 20 steps by sign+ef (octavo.Outer), a step takes 22.0 ms" in advise.sentences(report)[2]
    assert "in runs of 1,000 steps and more" in advise.sentences(report)[2]


def test_hooks_of_torch_are_no_plans():
    report = report_of(row(TORCH, 500), row("torch-fp16", 50, 28_000_000, 9), row("sign+ef", 60, 4_000_000, 8))
    assert advise.fastest(report).plan == "sign+ef"


@pytest.mark.parametrize("milliseconds", [25.0, 24.5, 30.0])
def test_dense_wins_where_no_plan_is_much_faster(milliseconds):
    report = report_of(row(TORCH, 25.2), row("int4+ef", milliseconds, 14_000_000, 9))
    assert advise.fastest(report).plan == TORCH
    assert "Do not compress here" in advise.sentences(report)[0]


def test_a_plan_pays_on_links_on_which_its_codec_is_faster_than_the_bytes_it_saves():
    assert advise.pays_below_gigabits_per_s(row("sign+ef", 60, 4_000_000, 8), DENSE_BYTES) == pytest.approx(96)
    for nothing in (row("dense", 60), row("x", 60, 2 * DENSE_BYTES, 8), replace(row("x", 60, 1, 8), wire_bytes=None)):
        assert advise.pays_below_gigabits_per_s(nothing, DENSE_BYTES) is None


def test_a_report_survives_its_file():
    report = report_of(row(TORCH, 500), row("sign+ef", 60, 4_000_000, 8))
    assert Report.parse(report.text()) == report


COMMAND = """
import sys
from octavo.bench.advise_cli import app
app(sys.argv[1:])
"""


@pytest.mark.ranks
@pytest.mark.timeout(120)
def test_the_command_measures_its_job(tmp_path):
    file = tmp_path / "advice.json"
    size = ["--layers=2", "--width=64", "--rounds=1"]
    done = run_ranks(
        2, COMMAND, "dense", "sign+ef", "outer:2/sign+ef", *size, f"--json={file}", timeout_s=100, OMP_NUM_THREADS="1"
    )
    assert [exit_code for exit_code, *_ in done] == [0, 0], done
    (_, said, _), (_, silence, _) = done
    assert "is the fastest on this link" in said and "pays below Gbit/s" in said and silence == ""
    report = Report.parse(file.read_text())
    assert report.ranks == 2 and report.link.gigabits_per_s > 0 and report.link.latency_ms > 0
    plans = {row.plan: row for row in report.rows}
    assert plans["sign+ef"].wire_bytes < plans["dense"].wire_bytes / 20
    assert json.loads(file.read_text())["rows"]


@needs_hosts
@pytest.mark.ranks
@pytest.mark.timeout(120)
def test_a_link_carries_what_it_says_in_both_directions_at_once():
    report = advise.measure(["dense"], nproc=2, rounds=1, size=Size(rows=1, layers=1, width=64), link="100mbit")
    assert 0.07 < report.link.gigabits_per_s < 0.11


def test_what_cannot_be_measured_is_refused():
    for arguments in (["1bit"], ["--link=2gbit"], ["outer:20/sign-vote"]):
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 2 and "error: [" in done.output, done.output
