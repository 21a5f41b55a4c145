# SPDX-License-Identifier: Apache-2.0
"""The ranks of a job as processes of this machine: their start, their exit codes, what they wrote to stderr, their end.

torch.distributed.elastic starts each in a session of its own, with its output in files, and ends them.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std, start_processes
from torch.distributed.elastic.multiprocessing.tail_log import TailLog

from octavo.train.errors import ERROR_MARK, EXIT_JOB, EXIT_PEER
from octavo.train.launch import die_with_parent

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
GRACE_S = 3
"""How many seconds the ranks have to end after SIGTERM, before SIGKILL."""
_SHOWN_LINES = 60
"""How many last lines of a rank are shown: a traceback of Python and torch takes 20 to 40."""
_TAIL_BYTES = 1 << 16


class LocalRanks:
    """Running ranks. Rank 0 writes to our stdout and, except for its error sentence, to our stderr; the others to
    files.

    Must be made in the main thread: the kernel kills the ranks when the thread that started them ends. elastic's
    handlers are in place afterwards: STOP_SIGNALS raise its SignalException in the main thread, except for those that
    were ignored before, as SIGHUP is under nohup.
    """

    def __init__(self, command: list[str], environments: list[dict[str, str]], folder: Path) -> None:
        """Starts one rank for each of `environments`, which add to our own. `folder` takes their output, and is removed
        as soon as they run."""
        # elastic would report to this logger what our caller says in one sentence.
        logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)
        start = ("-I", "-S", die_with_parent.__file__, str(os.getpid()), *command)
        count = len(environments)
        ignored = [number for number in STOP_SIGNALS if signal.getsignal(number) == signal.SIG_IGN]
        self._processes = start_processes(
            "rank",
            sys.executable,
            args=dict.fromkeys(range(count), start),
            envs=dict(enumerate(environments)),
            logs_specs=DefaultLogsSpecs(
                str(folder), {rank: Std.ERR if rank == 0 else Std.ALL for rank in range(count)}
            ),
        )
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
        # Files that are open need no names, and without names nothing is left of a launcher that is killed.
        paths = self._processes.stderrs
        self._stderrs = {rank: open(paths[rank], "rb") for rank in paths}  # noqa: SIM115 - open as long as the ranks
        shutil.rmtree(folder, ignore_errors=True)
        self._rank_0_stderr = TailLog(
            "rank",
            {0: f"/proc/self/fd/{self._stderrs[0].fileno()}"},
            sys.stderr,
            log_line_prefixes={0: ""},
            log_line_filter=lambda line: not line.startswith(ERROR_MARK),
        )

    def show_rank_0(self) -> None:
        """Begins to copy rank 0's stderr to ours, until `end`."""
        self._rank_0_stderr.start()

    def exit_codes(self) -> dict[int, int | None]:
        """Returns the exit code of each rank: minus the signal where one killed the rank, None while it runs."""
        # `wait()` would end all ranks with the first failure, before the others can say what went wrong.
        return {rank: handler.proc.poll() for rank, handler in self._processes.subprocess_handlers.items()}

    def end(self) -> None:
        """Ends the ranks that still run: SIGTERM, a grace period, SIGKILL. Returns once all are gone."""
        self._processes.close(signal.SIGTERM, timeout=GRACE_S)
        self._rank_0_stderr.stop()

    def stderr(self, rank: int) -> list[str]:
        """Returns the last lines that `rank` wrote to stderr, without blank ones."""
        file = self._stderrs[rank]
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
        return [line.rstrip() for line in lines if line.strip()][-_SHOWN_LINES:]


def blame(failed: Mapping[int, int], ranks: LocalRanks) -> str:
    """Returns the sentence for a failed job: which rank is at fault, and why. `failed`: the exit codes of the ranks
    that ended badly."""
    rank = min(failed, key=lambda rank: _blame_order(rank, failed[rank]))
    code = failed[rank]
    if code < 0:
        return f"rank {rank} was killed by {_signal_name(-code)}"
    sentences = [line.removeprefix(ERROR_MARK) for line in ranks.stderr(rank) if line.startswith(ERROR_MARK)]
    if not sentences:
        return f"rank {rank} ended with exit code {code}"
    return sentences[-1] if code == EXIT_JOB else f"rank {rank} ended with exit code {code}: {sentences[-1]}"


def _blame_order(rank: int, code: int) -> tuple[int, int]:
    """Returns the sort key of a rank: those that a signal killed come first, then those that failed, then those that
    only lost another rank."""
    return (0 if code < 0 else 2 if code == EXIT_PEER else 1), rank


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
