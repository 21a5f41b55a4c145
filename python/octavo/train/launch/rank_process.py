# SPDX-License-Identifier: Apache-2.0
"""One rank as its launcher sees it: a process, its last words, and what it died of."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading

from octavo.train.errors import ERROR_MARK, EXIT_JOB, EXIT_PEER

_PR_SET_PDEATHSIG = 1
_KEPT_LINES = 40
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class RankProcess:
    """A rank in a process group of its own. Rank 0 writes to our stdout; the others' last lines are kept."""

    def __init__(self, rank: int, command: list[str], env: dict[str, str]) -> None:
        self.rank = rank
        self._last_lines: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
        parent = os.getpid()
        self._process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=None if rank == 0 else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            preexec_fn=lambda: _die_with(parent),
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def is_running(self) -> bool:
        """Whether the process has not ended yet."""
        return self._process.poll() is None

    def has_failed(self) -> bool:
        """Whether the process has ended, and not well."""
        return self._process.poll() not in (None, 0)

    @property
    def code(self) -> int | None:
        """The exit code, minus the signal where one killed the process, None while it runs."""
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        """Sends `number` to the whole group of the rank; does nothing where it is gone."""
        if self.is_running():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def close(self) -> None:
        """Waits for the end of the process and of its output."""
        self._process.wait()
        self._reader.join(timeout=1.0)

    def last_words(self) -> str:
        """The last error sentence of the rank, or its last line, or nothing."""
        self._reader.join(timeout=1.0)
        lines = [line for line in self._last_lines if line]
        errors = [line.removeprefix(ERROR_MARK) for line in lines if line.startswith(ERROR_MARK)]
        return errors[-1] if errors else (lines[-1] if lines else "")

    def _read(self) -> None:
        """Keeps the rank's stderr and passes on rank 0's, but for error sentences."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._last_lines.append(line.strip())
            if self.rank == 0 and not line.startswith(ERROR_MARK):
                sys.stderr.write(line)
                sys.stderr.flush()


def blame(failed: list[RankProcess]) -> str:
    """The sentence for a failed job, from the ranks that ended badly: which one is at fault, and why."""
    culprit = min(failed, key=_innocence)
    words, code = culprit.last_words(), culprit.code or 0
    if code == EXIT_JOB and words:
        return words
    if code < 0:
        said = f"; the last it said was: {words}" if words else ""
        return f"rank {culprit.rank} was killed by {_signal_name(-code)}{said}"
    return f"rank {culprit.rank} ended with exit code {code}" + (f": {words}" if words else "")


def _innocence(rank: RankProcess) -> tuple[int, int]:
    """Small for causes, large for consequences: who only lost a peer is not to blame."""
    code = rank.code or 0
    order = 0 if code < 0 else 2 if code == EXIT_PEER else 1
    return order, rank.rank


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _die_with(parent: int) -> None:
    """Runs in the child before it becomes Python: a group of its own, and death with the launcher."""
    os.setpgid(0, 0)
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # The parent may have died before the call.
        if os.getppid() != parent:
            os._exit(1)
