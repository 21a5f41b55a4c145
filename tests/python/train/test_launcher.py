# SPDX-License-Identifier: Apache-2.0
"""The launcher, with small scripts as ranks: which rank is blamed, how long it takes, and that no process is left.

Most scripts form no process group: only a test whose ranks do so has `pytest.mark.ranks`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from patience import PATIENCE
from train_runs import clean_environment, nano_config, read_curve, train_command

from octavo.cores import usable_cores
from octavo.train.config import TrainConfig
from octavo.train.errors import EXIT_JOB, EXIT_PEER, EXIT_RANK, exit_code, sentence
from octavo.train.launch import launcher, world

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def play(monkeypatch, capfd):
    """Returns a function that runs a script as every rank (`rank` is its number) and returns (status, output,
    seconds)."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)

    def run(script: str, nproc: int = 2, **options) -> tuple[int, str, float]:
        lines = "import os, signal, sys, time\nrank = int(os.environ['RANK'])\n" + textwrap.dedent(script)
        monkeypatch.setattr(launcher, "_command", lambda _config: [sys.executable, "-c", lines])
        start = time.monotonic()
        status = launcher.launch(TrainConfig(nproc=nproc, **options))
        return status, "".join(capfd.readouterr()), time.monotonic() - start

    return run


def test_a_job_whose_ranks_all_end_well_ends_well(play):
    status, said, _ = play("print('hello from', rank)")
    assert (status, said) == (0, "hello from 0\n")


def test_ranks_take_no_modules_from_the_users_folder(play, tmp_path, monkeypatch):
    (tmp_path / "tokenizers.py").write_text("raise SystemExit('mine')")
    monkeypatch.chdir(tmp_path)
    status, said, _ = play("print(os.environ['PYTHONSAFEPATH'])")
    assert (status, said) == (0, "1\n")


def test_an_interface_that_is_none_is_named(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nope")
    error = RuntimeError(
        "[enforce fail at gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find address for: nope"
    )
    trouble = RuntimeError(world._meeting_trouble(error, "127.0.0.1", 1))
    assert "GLOO_SOCKET_IFNAME=nope names no network interface" in str(trouble)
    assert exit_code(trouble) == EXIT_RANK


def test_a_deadline_of_the_wire_is_a_peers_fault_and_any_other_is_not():
    late = (
        "[comm.wire] rank 0: a peer did not answer within 1000 ms (with rank 1: [gloo/transport/tcp/unbound_buffer.cc"
    )
    assert exit_code(TimeoutError(late)) == EXIT_PEER
    assert exit_code(TimeoutError("a lock of the file system")) == EXIT_RANK


def test_a_failure_that_the_other_ranks_cannot_be_told_of_is_told_by_its_own_rank(monkeypatch):
    def lose(_self: world.World, _value: object) -> NoReturn:
        raise RuntimeError("[/__w/gloo/transport/tcp/pair.cc:537] Connection closed by peer")

    def fail() -> NoReturn:
        raise OSError("[train.test] the disk is full")

    monkeypatch.setattr(world.World, "gather", lose)
    with pytest.raises(OSError, match=r"^\[train\.test\] the disk is full$") as told:
        world.World(1, 2).agree(fail)
    assert exit_code(told.value) == EXIT_RANK
    assert exit_code(told.value.__context__) == EXIT_PEER
    with pytest.raises(RuntimeError, match="closed by peer") as lost:
        world.World(1, 2).agree(lambda: None)
    assert exit_code(lost.value) == EXIT_PEER


def test_the_place_in_gloos_sources_is_no_part_of_the_sentence():
    lost = RuntimeError("[/__w/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error: reset by peer")
    assert (sentence(lost), exit_code(lost)) == ("Read error: reset by peer", EXIT_PEER)


def test_output_that_nobody_reads_ends_a_rank_with_a_sentence(play):
    script = """
        from octavo.train.config import TrainConfig
        from octavo.train.launch import rank_main

        def unread(*_):
            raise SystemExit(1)  # as rich does

        rank_main.run_job = unread
        rank_main.run_rank(TrainConfig())
    """
    status, said, _ = play(script, nproc=1)
    assert status == EXIT_JOB and "nothing reads this command's output any more" in said


def test_output_that_cannot_be_written_is_told_as_such(play, monkeypatch):
    script = """
        from octavo.train.config import TrainConfig
        from octavo.train.launch import rank_main

        sys.stdout = open("/dev/full", "w")
        rank_main.run_job = lambda config, world, console: console.print("a line")
        rank_main.run_rank(TrainConfig())
    """
    status, said, _ = play(script, nproc=1)
    assert status == EXIT_JOB
    assert "[console] what this command prints cannot be written to stdout: No space left on device" in said


def test_a_rank_that_is_done_ends_without_tearing_the_interpreter_down(play):
    """In a teardown, a thread of Gloo that releases a Python tensor aborts the process, once in some 40 jobs."""
    script = """
        import atexit
        from octavo.train.config import TrainConfig
        from octavo.train.launch import rank_main

        class Torn:
            def __del__(self):
                os.write(1, b"torn down")

        kept = Torn()
        atexit.register(lambda: print("at exit"))
        rank_main.run_job = lambda *_: print("trained")
        rank_main.run_rank(TrainConfig())
    """
    status, said, _ = play(script, nproc=1)
    assert (status, said) == (0, "trained\nat exit\n")


def test_a_killed_rank_ends_the_job_at_once_with_its_name_and_signal(play):
    status, said, seconds = play("time.sleep(60) if rank != 1 else os.kill(os.getpid(), signal.SIGKILL)", nproc=3)
    assert (status, said) == (EXIT_JOB, "error: rank 1 was killed by SIGKILL\n")
    assert seconds < 10


@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_rank_is_blamed_not_the_one_that_lost_it(play, killed):
    script = f"""
        if rank == {killed}:
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        print('error: lost another rank: Connection closed', file=sys.stderr)
        sys.exit({EXIT_PEER})
    """
    assert play(script)[:2] == (EXIT_JOB, f"error: rank {killed} was killed by SIGKILL\n")


def test_the_last_words_of_a_crashed_rank_are_passed_on(play):
    script = "time.sleep(60) if rank != 1 else (print('terminate called', file=sys.stderr), os.abort())"
    _, said, _ = play(script)
    assert said == "rank 1: terminate called\nerror: rank 1 was killed by SIGABRT\n"


@pytest.mark.parametrize("culprit", [0, 1])
def test_the_traceback_of_any_rank_is_shown_above_the_sentence(play, culprit):
    script = f"""
        from octavo.train.errors import show_traceback
        if rank == {culprit}:
            try:
                [].pop()
            except IndexError as error:
                show_traceback(error)
            print("error: IndexError: pop from empty list", file=sys.stderr)
            sys.exit({EXIT_RANK})
        time.sleep(60)
    """
    _, said, _ = play(script)
    *above, last = said.splitlines()
    assert last == f"error: rank {culprit} ended with exit code {EXIT_RANK}: IndexError: pop from empty list"
    mark = "rank 1: " if culprit else ""
    assert above[0] == f"{mark}Traceback (most recent call last):"
    assert above[-1] == f"{mark}IndexError: pop from empty list"


def test_stderr_of_rank_0_is_passed_on_while_it_runs(play):
    script = """
        print(f"warning: rank {rank}", file=sys.stderr)
        print("error: said by the launcher", file=sys.stderr)
    """
    assert play(script)[:2] == (0, "warning: rank 0\n")


def test_no_python_runs_between_fork_and_exec(play, monkeypatch):
    """In the child, a lock that another thread of the launcher holds would stay locked."""
    used, real = [], subprocess.Popen.__init__

    def record(self, *args, **options):
        used.append(options.get("preexec_fn"))
        real(self, *args, **options)

    monkeypatch.setattr(subprocess.Popen, "__init__", record)
    assert play("pass")[0] == 0
    assert used == [None, None]


def test_the_cause_is_blamed_not_the_ranks_that_lost_it(play, tmp_path):
    script = f"""
        open(r'{tmp_path}/%d' % rank, 'w').close()
        while len(os.listdir(r'{tmp_path}')) < 3:
            time.sleep(0.01)
        if rank == 2:
            time.sleep(0.3)
            print('error: [room.function] expected a, got b', file=sys.stderr)
            sys.exit({EXIT_RANK})
        print('error: lost another rank: Connection closed', file=sys.stderr)
        sys.exit({EXIT_PEER})
    """
    status, said, _ = play(script, nproc=3)
    assert status == EXIT_JOB
    assert said == f"error: rank 2 ended with exit code {EXIT_RANK}: [room.function] expected a, got b\n"


def test_a_failure_of_the_whole_job_is_said_once_without_a_rank(play):
    script = f"""
        if rank == 0:
            print('error: [train.dataset] expected x, got y', file=sys.stderr)
        sys.exit({EXIT_JOB})
    """
    assert play(script)[:2] == (EXIT_JOB, "error: [train.dataset] expected x, got y\n")


def test_a_rank_that_ignores_sigterm_is_killed(play):
    script = """
        if rank == 1:
            sys.exit(9)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(60)
    """
    status, said, seconds = play(script)
    assert (status, said) == (EXIT_JOB, "error: rank 1 ended with exit code 9\n")
    assert seconds < 10


def test_a_stopped_rank_is_killed_with_the_others(play):
    script = "os.kill(os.getpid(), signal.SIGSTOP) if rank == 0 else (time.sleep(0.5), sys.exit(9))"
    assert play(script)[2] < 10


def test_ranks_share_the_cores_and_meet_on_this_machine(play):
    script = "print(*(os.environ[n] for n in ('OMP_NUM_THREADS', 'WORLD_SIZE', 'LOCAL_RANK', 'MASTER_ADDR')))"
    _, said, _ = play(script)
    assert said.split() == [str(max(1, usable_cores() // 2)), "2", "0", "127.0.0.1"]


def test_a_port_in_use_is_one_sentence_and_starts_nothing(play):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(RuntimeError, match=rf"the ranks cannot meet at port {port} .*choose another --port"):
            play("print('started')", port=port)


def test_the_connections_of_a_killed_launcher_do_not_keep_its_port(play):
    """A killed launcher closes its connections first, and the system keeps them for a minute."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    store = launcher._serve_store(TrainConfig(port=port))
    with socket.create_connection(("127.0.0.1", port)) as rank:
        del store
        rank.settimeout(30)
        assert rank.recv(1) == b"", "the store closes first"
    assert play("pass", port=port)[0] == 0


def test_a_store_that_misses_its_deadline_is_one_sentence_and_starts_nothing(play, monkeypatch):
    def late(*_: object, **__: object) -> NoReturn:
        raise torch.distributed.DistNetworkError("The client socket has timed out after 1500ms")

    monkeypatch.setattr(torch.distributed, "TCPStore", late)
    with pytest.raises(RuntimeError) as failure:
        play("print('started')", timeout_s=1.5)
    assert str(failure.value) == (
        "[train.launcher] the store where the ranks meet did not answer within --timeout-s 1.5: choose a longer "
        "--timeout-s"
    )


def test_a_master_port_in_the_environment_counts(play, monkeypatch):
    for port in ("many", "--5"):
        monkeypatch.setenv("MASTER_PORT", port)
        with pytest.raises(ValueError, match=f"MASTER_PORT must be a whole number, got '{port}'"):
            play("print('started')")


def test_ranks_that_cannot_meet_say_where_also_without_an_address(monkeypatch):
    for name in ("MASTER_ADDR", world.PARENT_STORE):
        monkeypatch.delenv(name, raising=False)
    for name, value in dict(RANK="0", WORLD_SIZE="2").items():
        monkeypatch.setenv(name, value)
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setenv("MASTER_PORT", str(port))
        with pytest.raises(RuntimeError, match=rf"port {port} on 127\.0\.0\.1 is in use: choose another MASTER_PORT"):
            world.join(timeout_s=30)


def test_too_many_ranks_are_refused_before_anything_starts(play):
    with pytest.raises(ValueError, match="--nproc must be at most"):
        play("print('started')", nproc=1000)


@pytest.mark.parametrize(
    ("number", "status", "words"),
    [
        (
            signal.SIGINT,
            130,
            "stopped by SIGINT: the same command continues from the last checkpoint, if there is one\n",
        ),
        (
            signal.SIGTERM,
            143,
            "stopped by SIGTERM: the same command continues from the last checkpoint, if there is one\n",
        ),
        (signal.SIGKILL, -9, ""),
    ],
)
def test_no_rank_and_no_file_outlives_its_launcher(tmp_path, number, status, words):
    rank = textwrap.dedent(f"""
        import os, time
        with open(r"{tmp_path}/" + os.environ["RANK"], "w") as file:
            file.write(str(os.getpid()))
        time.sleep(60)
    """)
    process = start_launcher(rank, TMPDIR=str(tmp_path))
    pids = [int(wait_for(lambda n=n: (tmp_path / str(n)).read_text())) for n in (0, 1)]
    wait_for(lambda: not list(tmp_path.glob("octavo-*")))
    process.send_signal(number)
    said = process.communicate(timeout=30)[1]
    assert (process.returncode, said) == (status, words)
    for pid in pids:
        wait_for(lambda pid=pid: not is_alive(pid))


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("options", "has_begun"),
    [("fresh=True", True), ("fresh=True", False), ("fresh=True, compare=('dense', 'sign+ef')", True)],
)
def test_a_fresh_run_that_is_stopped_is_continued_without_fresh(tmp_path, options, has_begun):
    """With it the same command would remove what was trained; before that, the older run is still there."""
    rank = f"""
import time
from octavo.train.launch import world
here = world.join(60)
if {has_begun}:
    here.note_start_over()
open(r"{tmp_path}/" + str(here.rank), "w").close()
time.sleep(60)
"""
    process = start_launcher(rank, options=options)
    wait_for(lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists())
    process.send_signal(signal.SIGTERM)
    without = " without --fresh" * has_begun
    assert process.communicate(timeout=30)[1] == (
        f"stopped by SIGTERM: the same command{without} continues from the last checkpoint, if there is one\n"
    )


@pytest.mark.parametrize("failure", ["errors.PeerLost('it is gone')", "OSError(28, 'No space left')"])
@pytest.mark.parametrize("compare", [(), ("dense", "sign+ef")])
@pytest.mark.parametrize("is_second", [False, True])
def test_a_fresh_run_that_fails_is_continued_without_fresh(play, failure, compare, is_second):
    """Also where torchrun has started it again, and it went on from its checkpoints."""
    script = f"""
        import os
        import torch.distributed as dist
        from octavo.train import errors
        from octavo.train.config import TrainConfig
        from octavo.train.launch import rank_main, world

        def fail(config, here, *_):
            print("fresh:", config.fresh)
            if config.fresh:
                here.note_start_over()
            with errors.writing(what="a file", where="train.test"):
                raise {failure}

        if {is_second}:  # an earlier attempt has begun the run
            store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), 1, False)
            store.set(world.STARTED_OVER, "")
        rank_main.run_job = rank_main.compare.run_comparison = fail
        rank_main.run_rank(TrainConfig(fresh=True, compare={compare!r}))
    """
    _, said, _ = play(script, nproc=1, fresh=True)
    assert f"fresh: {not is_second}" in said
    assert "the same command without --fresh continues from the last checkpoint, if there is one\n" in said


def test_what_the_caller_ignores_stays_ignored(tmp_path):
    """nohup, for example, ignores SIGHUP: the run outlives its terminal."""
    rank = textwrap.dedent(f"""
        import os, time
        open(r"{tmp_path}/" + os.environ["RANK"], "w").close()
        while not os.path.exists(r"{tmp_path}/go"):
            time.sleep(0.02)
    """)
    process = start_launcher(rank, ignored=("SIGHUP",))
    wait_for(lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists())
    process.send_signal(signal.SIGHUP)
    time.sleep(0.2)
    (tmp_path / "go").touch()
    assert process.communicate(timeout=30)[1] == ""
    assert process.returncode == 0


def test_a_second_ctrl_c_does_not_keep_the_ranks_from_being_ended(tmp_path):
    """The first rank ignores SIGTERM, so that the launcher is waiting when the second signal comes."""
    rank = textwrap.dedent(f"""
        import os, signal, time
        signal.signal(signal.SIGTERM, lambda *_: open(r"{tmp_path}/asked-" + os.environ["RANK"], "w").close())
        with open(r"{tmp_path}/" + os.environ["RANK"], "w") as file:
            file.write(str(os.getpid()))
        while True:
            time.sleep(60)
    """)
    process = start_launcher(rank)
    pids = [int(wait_for(lambda n=n: (tmp_path / str(n)).read_text())) for n in (0, 1)]
    process.send_signal(signal.SIGINT)
    wait_for(lambda: (tmp_path / "asked-0").exists())
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=30)[1]
    assert (process.returncode, said.count("\n")) == (130, 1)
    assert not any(is_alive(pid) for pid in pids)


def test_a_run_trains_without_a_stdout(tmp_path):
    config = nano_config(tmp_path, nproc=1, steps=1)
    command = ["sh", "-c", 'exec "$@" >&-', "sh", *train_command(config)]
    done = subprocess.run(command, env=clean_environment(), stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(read_curve(tmp_path / "out")) == 1


def start_launcher(
    rank: str, ignored: tuple[str, ...] = (), options: str = "", **environment: str
) -> subprocess.Popen[str]:
    """Starts a process that ignores only the signals that are named and launches two ranks with the script `rank`."""
    parent = textwrap.dedent(f"""
        import signal, sys
        from octavo.train.config import TrainConfig
        from octavo.train.launch import launcher
        signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell lets its background jobs ignore
        for name in {ignored!r}:
            signal.signal(signal.Signals[name], signal.SIG_IGN)
        launcher._command = lambda _config: [sys.executable, "-c", {rank!r}]
        sys.exit(launcher.launch(TrainConfig({options})))
    """)
    command = [sys.executable, "-c", parent]
    return subprocess.Popen(command, env=clean_environment(**environment), stderr=subprocess.PIPE, text=True)


def wait_for(condition, timeout_s: float = 30.0):
    """Returns the value of `condition` once it is true."""
    deadline = time.monotonic() + PATIENCE * timeout_s
    while time.monotonic() < deadline:
        try:
            if value := condition():
                return value
        except FileNotFoundError:
            pass
        time.sleep(0.02)
    raise AssertionError("waited in vain")


def is_alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
    except OSError:
        return os.path.exists(f"/proc/{pid}")
