# SPDX-License-Identifier: Apache-2.0
"""`octavo bench ddp`: the rows and links of its table, and a line for each of torch's hooks that raises or hangs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from fork_server import run_code, run_ranks
from needs_hosts import needs_hosts
from patience import PATIENCE
from train_runs import clean_environment, run_octavo
from typer.testing import CliRunner

from octavo.bench import cli, ddp, ddp_jobs, jobs, linked_hosts
from octavo.bench.ddp import Row, _one_line
from octavo.bench.linked_hosts import Hosts, why_no_hosts

SMALL = ("--layers", "4", "--width", "256", "--rounds", "2")  # 1 MB of gradients


def bench_ddp(folder: Path, *arguments: str) -> list[Row]:
    path = folder / "rows.json"
    done = run_octavo("bench", "ddp", *arguments, *SMALL, "--json", str(path), timeout_s=150, COLUMNS="200")
    assert done.returncode == 0, done.stderr
    return [Row(**row) for row in json.loads(path.read_text())]


#: `octavo bench` in a process that has imported torch.
BENCH = """
import sys
from octavo.bench.cli import app
app(sys.argv[1:])
"""


@pytest.mark.ranks
@needs_hosts
@pytest.mark.timeout(120)
def test_a_bench_that_is_terminated_leaves_nothing_behind(tmp_path):
    command = [sys.executable, "-m", "octavo", "bench", "ddp", "dense", "--link=100mbit", "--rounds=1000000"]
    environment = clean_environment(TMPDIR=str(tmp_path))
    bench = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: len(hosts_of(bench.pid)) == 3 and any(tmp_path.iterdir()))
        bench.terminate()
        assert bench.wait(timeout=PATIENCE * 30) != 0
    finally:
        bench.kill()
    assert not hosts_of(bench.pid)
    assert not list(tmp_path.iterdir())


def hosts_of(pid: int) -> list[str]:
    """Returns the network namespaces of a bench: a switch and its hosts."""
    known = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout.split()
    return [name for name in known if name.startswith(f"octavo{pid}-")]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE * 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.ranks
@pytest.mark.timeout(180)
def test_the_table_has_every_number_of_rows(tmp_path):
    path = tmp_path / "rows.json"
    options = ("--rows=4", "--rows=64", *SMALL, f"--json={path}")
    done = run_ranks(2, BENCH, "ddp", "sign+ef", "auto", *options, timeout_s=150, OMP_NUM_THREADS="1")
    assert [exit_code for exit_code, *_ in done] == [0, 0], done
    rows = [Row(**row) for row in json.loads(path.read_text())]
    plans = ["alone", "torch", "torch-fp16", "sign+ef", "auto"]
    assert [(row.rows, row.plan) for row in rows] == [(count, plan) for count in (4, 64) for plan in plans]
    assert all(row.milliseconds > 0 and row.link == "unshaped" for row in rows)
    assert rows[1].wire_bytes == 2**20 and rows[3].wire_bytes < 2**20 / 25
    assert "of measuring; " in rows[4].remark and rows[3].remark == ""


@pytest.mark.ranks
@pytest.mark.timeout(180)
def test_rounds_are_rows_whose_bytes_are_the_average_steps(tmp_path):
    path = tmp_path / "rows.json"
    done = run_ranks(2, BENCH, "ddp", "outer:4:1:2/dense", *SMALL, f"--json={path}", timeout_s=150, OMP_NUM_THREADS="1")
    assert [exit_code for exit_code, *_ in done] == [0, 0], done
    rows = {row["plan"]: Row(**row) for row in json.loads(path.read_text())}
    assert rows["outer:4:1:2/dense"].wire_bytes == pytest.approx(rows["torch"].wire_bytes / 4, rel=0.01)


@pytest.mark.ranks
@pytest.mark.timeout(180)
def test_what_a_hook_of_torchs_raises_is_its_line(tmp_path):
    (row,) = bench_ddp(tmp_path, "torch-int8")
    assert (row.plan, row.milliseconds) == ("torch-int8", None)
    assert row.remark.startswith("raises IndexError: ")


@pytest.mark.ranks
@needs_hosts
@pytest.mark.timeout(180)
def test_a_link_is_as_slow_as_it_says(tmp_path):
    rows = {row.plan: row for row in bench_ddp(tmp_path, "sign+ef", "--link", "100mbit")}
    assert {row.link for row in rows.values()} == {"100mbit"}
    link_ms = 2**20 * 8 / 100e6 * 1e3  # 84 ms; 64 kB after each pause are free
    assert rows["torch"].milliseconds > 0.8 * link_ms
    assert rows["sign+ef"].wire_bytes < rows["torch"].wire_bytes / 20  # its time depends on how busy the machine is


@pytest.mark.ranks
@needs_hosts
def test_hosts_see_each_other_and_nothing_else_and_leave_nothing_behind():
    with Hosts(2) as hosts:
        name = hosts._name(0)
        assert ping(hosts, 0, hosts.address(1)) == 0
        assert ping(hosts, 0, "192.0.2.1") != 0
        cores = {tuple(os.sched_getaffinity(hosts.start(host, ["sleep", "60"], os.environ).pid)) for host in (0, 1)}
        assert all(len(core) == 1 for core in cores)
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert name not in listed


def ping(hosts: Hosts, host: int, address: str) -> int:
    connect = f"import socket; socket.create_connection(('{address}', 1), timeout=2)"
    said, _ = hosts.start(host, [sys.executable, "-c", connect], os.environ).communicate(timeout=30)
    return 0 if "ConnectionRefusedError" in said else 1  # the host answers, but this port is not open


@pytest.mark.ranks
@needs_hosts
def test_what_tc_refuses_is_a_sentence_and_leaves_nothing_behind():
    with pytest.raises(RuntimeError, match=r"^\[bench.linked_hosts\] `tc .* failed: "), Hosts(2, "quickly"):
        pass
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert f"octavo{os.getpid()}-" not in listed


class Immortal:
    """A process that does not end in time."""

    pid, stdout = -1, None

    def wait(self, timeout: float) -> NoReturn:
        raise subprocess.TimeoutExpired("ip", timeout)


def test_a_process_that_does_not_end_hides_no_error_and_leaves_no_host_behind(monkeypatch):
    told: list[str] = []
    monkeypatch.setattr(linked_hosts, "why_no_hosts", lambda: None)
    monkeypatch.setattr(os, "killpg", lambda *_: told.append("killed"))
    monkeypatch.setattr(Hosts, "_build", lambda _self: None)
    monkeypatch.setattr(Hosts, "_tear_down", lambda _self: told.append("torn down"))
    with pytest.raises(RuntimeError, match="that of the block"), Hosts(2) as hosts:
        hosts._started += [Immortal(), Immortal()]
        raise RuntimeError("that of the block")
    assert told == ["killed", "killed", "torn down"]


@pytest.mark.parametrize("heeds", [True, False])
def test_a_launcher_is_asked_to_end_before_it_is_killed(heeds):
    ignore = "" if heeds else "signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    script = f"import signal, time; {ignore}print(flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-S", "-c", script], stdout=subprocess.PIPE, text=True)
    process.stdout.readline()
    jobs.end_launcher(process, within_s=PATIENCE * 10 if heeds else 0.1)
    assert process.returncode == (-signal.SIGTERM if heeds else -signal.SIGKILL)
    process.stdout.close()


HANGING = """
import time
from octavo.bench import ddp
from torch.futures import Future
ddp.NO_ANSWER_S = 1.0
ddp.HOOKS["hanging"] = lambda model: model.register_comm_hook(None, lambda state, bucket: Future())
ddp.try_hook("hanging", 1, ddp.Size(4, 1, 64), lambda row: print("row:", row.remark, flush=True))
"""


@pytest.mark.ranks
@pytest.mark.timeout(90)
def test_a_hook_that_never_answers_is_a_line_in_the_table():
    place = dict(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    exit_code, said, complaint = run_code(HANGING, timeout_s=80, **place)
    assert exit_code == 0, complaint
    assert "row: no answer in 1 s" in said


def test_a_hook_may_take_several_times_as_long_as_plain_ddp():
    place = dict(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    slow_link = HANGING.replace("ddp.HOOKS", "ddp._seconds_of = lambda step: 0.5\nddp.HOOKS")
    exit_code, said, complaint = run_code(slow_link, timeout_s=80, **place)
    assert exit_code == 0, complaint
    assert "row: no answer in 2 s" in said


def turns_before_counting(rank: int) -> list[str]:
    seen: list[str] = []

    class Step:
        count = 1

        def prepare(self) -> None:
            pass

        def __call__(self) -> None:
            seen.append("turn")

    ddp._measure({"plan": Step()}, 2, lambda name: seen.append(f"{name} is warm"))
    return seen


def test_what_is_counted_begins_after_the_warm_up(two_ranks):
    expected = ["turn"] * ddp.WARMUP_ROUNDS + ["plan is warm", "turn", "turn"]
    assert two_ranks.run(turns_before_counting) == [expected, expected]


def test_the_innermost_cause_is_named():
    error = RuntimeError("Got an error in the callback: RuntimeError: Got: IndexError: no such index\nat frame 1")
    assert _one_line(error) == "IndexError: no such index"
    assert _one_line(ValueError("plain")) == "ValueError: plain"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--link 2gbit", "--link is one of 10mbit, 100mbit, 1gbit, 10gbit, not '2gbit'"),
        ("--link 1gbit", "only root can make network namespaces"),
        ("torch-int9", "torch-int9"),
        ("zero3:int8/int4+ef", "octavo bench zero zero3:int8/int4+ef"),
        ("outer:20/auto", "[outer.Outer] the plan auto measures the exchanges of every step"),
    ],
)
def test_what_makes_no_sense_is_refused(monkeypatch, arguments, words):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("shutil.which", lambda command: f"/usr/sbin/{command}")
    result = CliRunner().invoke(cli.app, ["ddp", *arguments.split()])
    assert result.exit_code == 2
    assert words in result.stderr


@pytest.mark.parametrize("command", ["ddp", "allreduce", "zero"])
def test_under_torchrun_no_link_can_be_made(monkeypatch, command):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    result = CliRunner().invoke(cli.app, [command, "--link", "10mbit"])
    assert result.exit_code == 2
    assert "under torchrun the link is that of your hosts" in result.stderr


def test_a_missing_tool_is_named_with_its_package(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda command: None)
    assert why_no_hosts() == "the commands ip and tc are missing: install Debian's package iproute2"


@pytest.mark.parametrize("arguments", ["dense torch-int8", "torch-int8 --rows 4 --rows 1024"])
def test_under_torchrun_a_hook_is_measured_alone(monkeypatch, arguments):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    result = CliRunner().invoke(cli.app, ["ddp", *arguments.split()])
    assert result.exit_code == 2
    assert "torch-int8 may hang: under torchrun measure it alone" in result.stderr


def test_hooks_are_measured_at_every_number_of_rows(monkeypatch):
    asked = []

    def run_job(command: list[str], nproc: int, link: str | None) -> str:
        asked.append([argument for argument in command if not argument.startswith(("--rounds", "--layers", "--width"))])
        return json.dumps([dict(rows=int(command[-1].removeprefix("--rows=")), plan=command[2])])

    monkeypatch.setattr(jobs, "run_job", run_job)
    sizes = [ddp.Size(4), ddp.Size(1024)]
    *_, rows = ddp_jobs.measure(["dense", "torch-int8"], nproc=2, rounds=1, sizes=sizes, links=[None])
    assert [(row.plan, row.rows) for row in rows if row.plan == "torch-int8"] == [
        ("torch-int8", 4),
        ("torch-int8", 1024),
    ]
    assert [one[2:] for one in asked] == [
        ["dense", "--rows=4", "--rows=1024"],
        ["torch-int8", "--rows=4"],
        ["torch-int8", "--rows=1024"],
    ]


def test_under_torchrun_the_row_of_a_hook_is_printed(monkeypatch, capsys):
    monkeypatch.setattr(ddp, "try_hook", lambda name, rounds, size, report: report(Row(size.rows, name)))
    ddp_jobs.measure_as_rank(["torch-int8"], rounds=1, sizes=[ddp.Size(2, 8, 4)], report=None)
    assert json.loads(capsys.readouterr().out)[0]["plan"] == "torch-int8"


class OneMachine:
    """Stands for hosts: rank 1 fails, and rank 0 waits for it."""

    def __init__(self, *_: object) -> None:
        self.started: list[subprocess.Popen[str]] = []

    def __enter__(self) -> OneMachine:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.started:
            process.kill()
            process.wait()

    def address(self, host: int) -> str:
        return "127.0.0.1"

    def start(self, host: int, *_: object) -> subprocess.Popen[str]:
        lost = "import time; time.sleep(8); raise ConnectionError('rank 1 is lost')"
        code = lost if host == 0 else "raise ValueError('no room on rank 1')"
        command = [sys.executable, "-c", code]
        self.started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        return self.started[-1]


def test_the_rank_that_failed_first_says_why(monkeypatch):
    monkeypatch.setattr(jobs, "Hosts", OneMachine)
    with pytest.raises(RuntimeError, match="exit status 1 and said: ValueError: no room on rank 1"):
        jobs.run_job(["bench", "ddp"], 2, "1gbit")
