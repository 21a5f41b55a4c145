# SPDX-License-Identifier: Apache-2.0
"""What `octavo train` prints, draws and logs."""

from __future__ import annotations

import io
import json
import math
import sys

import pytest
from rich.console import Console

from octavo.console import make_console
from octavo.train.evaluate import Answer
from octavo.train.report import plots, progress, summary, tables
from octavo.train.report.metrics import MetricsLog, Totals, read_metrics


def test_answers_stay_on_one_line_and_in_their_cell():
    screen = io.StringIO()
    rambling = Answer("Say [b]hi[/b].", "", "hi", "### Response:\n\n" * 40, False)
    tables.print_answers(Console(file=screen, width=160), [rambling])
    assert len(screen.getvalue().splitlines()) < 12
    assert "[b]hi[/b]" in screen.getvalue()


def test_tables_fit_a_file_and_take_any_character(monkeypatch):
    content = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(content, encoding="latin-1"))
    console = make_console()
    tables.print_answers(console, [Answer("Say it.", "", "yes", "the end\u2026 \ufffd", False)])
    sys.stdout.flush()
    assert "the end? ?" in content.getvalue().decode("latin-1")
    assert console.width == 140


def test_a_file_is_no_terminal_whatever_variables_say(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO()))
    assert not make_console().is_interactive


def test_a_run_that_ends_in_its_warm_up_has_no_ratio_after_it():
    totals = Totals()
    totals.add_bytes(10, 70, late=False)
    assert summary._late_ratio(totals) is None
    totals.add_bytes(2, 40, late=True)
    assert summary._late_ratio(totals) == 20


def test_there_is_no_ratio_where_nothing_was_sent_yet():
    totals = Totals()
    totals.add_bytes(0, 70, late=False)
    assert progress.wire_text(totals) == "0.0 MB"
    totals.add_bytes(7 * 10**6, 70 * 10**6, late=False)
    assert progress.wire_text(totals) == "7.0 MB (10.0x)"


def test_the_time_of_a_step_is_without_those_that_compile():
    totals = Totals()
    totals.add_step(1, 64, 30.0, False, 1.0, compiles=True)
    assert totals.step_s == 30.0
    totals.add_step(2, 64, 0.5, False, 1.0, compiles=False)
    assert totals.step_s == 0.5 and totals.seconds == 30.5


def test_a_curve_is_smoothed_in_one_pass():
    values = [float(one % 7) for one in range(300)]
    near = [values[max(0, at - 6) : at + 7] for at in range(300)]
    assert plots._smooth(values) == pytest.approx([sum(window) / len(window) for window in near])
    huge = [*values[:20], 1e18, *values[20:]]
    assert plots._smooth(huge)[100:] == pytest.approx(plots._smooth(values)[99:], rel=0.2)
    values[100] = math.nan
    assert [at for at, mean in enumerate(plots._smooth(values)) if math.isnan(mean)] == list(range(94, 107))


def test_control_characters_do_not_reach_a_terminal():
    assert tables._line("a\x1bc\x00 b\nc") == "a\ufffdc\ufffd b c"


def test_no_two_of_many_plans_look_alike(tmp_path, monkeypatch):
    looks = []
    monkeypatch.setattr(plots, "_save", lambda _figure, axes, _path: looks.extend(axes[0].get_lines()))
    records = [dict(step=step, loss=1.0, wire_bytes_total=step) for step in (1, 2)]
    plots.plot_comparison({str(plan): records for plan in range(8)}, tmp_path / "compare.png")
    seen = {(line.get_color(), line.get_linestyle()) for line in looks if not line.get_label().startswith("_")}
    assert len(seen) == 8


def test_a_log_forgets_later_steps_and_torn_lines(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps(dict(step=step, loss=0.1)) + "\n" for step in range(1, 6)]
    path.write_text("".join(lines) + '{"step": 6, "lo')
    log = MetricsLog(path, kept_step=3)
    log.append(dict(step=4, loss=0.2))
    with pytest.raises(ValueError, match="not JSON compliant"):
        log.append(dict(step=5, loss=float("nan")))
    log.close()
    assert path.read_text() == "".join(lines[:3]) + '{"step": 4, "loss": 0.2}\n'


def test_a_log_keeps_what_lies_behind_a_damaged_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps(dict(step=step, loss=0.1)) + "\n" for step in range(1, 6)]
    lines[1] = '{"step": 2, \0\0\n'
    path.write_text("".join(lines))
    log = MetricsLog(path, kept_step=4)
    assert log.missing == 1
    log.append(dict(step=5, loss=0.2))
    log.close()
    assert [record["step"] for record in read_metrics(path)] == [1, 3, 4, 5]
    path.unlink()
    path.mkdir()
    with pytest.raises(OSError, match=rf"^\[train\.metrics\] {path} cannot be written: Is a directory"):
        MetricsLog(path, kept_step=4)


def test_totals_of_another_version_are_refused():
    assert Totals.from_dict(Totals(step=3).to_dict()).step == 3
    with pytest.raises(ValueError, match=r"^\[train\.metrics\] the checkpoint counts furlongs, which this version"):
        Totals.from_dict(Totals().to_dict() | {"furlongs": 2})


def test_a_log_that_finds_no_room_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path, kept_step=0)
    log._file = open("/dev/full", "a", encoding="utf-8")  # noqa: SIM115 - the log closes it
    words = rf"^\[train\.metrics\] {path} cannot be written: No space left on device; once the disk has room"
    with pytest.raises(OSError, match=words):
        log.append(dict(step=1, loss=0.1))
    with pytest.raises(OSError, match=words):
        log.close()
