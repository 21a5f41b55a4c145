# SPDX-License-Identifier: Apache-2.0
"""Starts the ranks of a job on this machine, watches them, and ends them all when one fails.

torch.distributed.elastic starts and ends the processes (`local_ranks`). Its agent (`torchrun`, `elastic_launch`) is not
used, because it cannot keep what a job of `octavo train` promises: it blames the rank whose failure it sees first,
which is often one that only lost its peer; it waits 30 s for a stopped rank; ranks outlive its SIGKILL
(`die_with_parent`).

The store where the ranks meet is in this process, on a port that the system picks while binding it. So there is no
moment in which another program could take the port.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import SignalException

from octavo.cores import check_local_ranks, threads_of_rank, usable_cores
from octavo.train.config import TrainConfig
from octavo.train.errors import (
    ERROR_MARK,
    EXIT_JOB,
    EXIT_PEER,
    continues,
    note_start_over,
    sentence,
    tracebacks_wanted,
)
from octavo.train.launch.local_ranks import STOP_SIGNALS, LocalRanks, blame
from octavo.train.launch.world import PARENT_STORE, STARTED_OVER, env_number

HOST = "127.0.0.1"
POLL_S = 0.05
GATHER_S = 1.0
"""How long after the first failure other ranks may fail too: the cause is then picked among all failures."""


def launch(config: TrainConfig) -> int:
    """Runs `config` on `config.nproc` local ranks; returns the exit status of the job, 0 where all went well.

    Raises ValueError for more ranks than make sense and RuntimeError for a port in use; nothing is started then. Must
    be called in the main thread.
    """
    check_local_ranks(config.nproc, usable_cores())
    store = _serve_store(config)
    environments = [_environment(config, rank, store.port) for rank in range(config.nproc)]
    try:
        with _restored_signals(), tempfile.TemporaryDirectory(prefix="octavo-") as folder:
            return _run(_command(config), environments, Path(folder))
    except SignalException as stop:
        _leave_bar()
        if store.check([STARTED_OVER]):
            note_start_over()
        print(f"stopped by {stop.sigval.name}: {continues()}", file=sys.stderr)
        return 128 + stop.sigval


def _run(command: list[str], environments: list[dict[str, str]], folder: Path) -> int:
    """Starts the ranks and returns the status of the job once none is left. Raises SignalException."""
    ranks = LocalRanks(command, environments, folder)
    try:
        ranks.show_rank_0()
        failed = _watch(ranks)
    finally:
        for number in STOP_SIGNALS:  # a second Ctrl-C must not keep the ranks from being ended
            signal.signal(number, signal.SIG_IGN)
        ranks.end()
    if not failed:
        return 0
    _report(failed, ranks)
    return EXIT_JOB


def _watch(ranks: LocalRanks) -> dict[int, int]:
    """Waits until all ranks have ended, or GATHER_S longer than one that failed. Returns the exit codes of failures."""
    deadline = None
    while True:
        codes = ranks.exit_codes()
        now, failed = time.monotonic(), {rank: code for rank, code in codes.items() if code}
        if failed and deadline is None:
            deadline = now + GATHER_S
        if None not in codes.values() or (deadline is not None and now > deadline):
            return failed
        time.sleep(POLL_S)


def _report(failed: dict[int, int], ranks: LocalRanks) -> None:
    """Prints what the failed ranks wrote, then the sentence of the job as the last line."""
    _leave_bar()
    for rank, code in sorted(failed.items()):
        # Rank 0's output has been shown already. A rank that only lost its peer has nothing to tell.
        if rank and (code != EXIT_PEER or tracebacks_wanted()):
            for line in ranks.stderr(rank):
                if not line.startswith(ERROR_MARK):
                    print(f"rank {rank}: {line}", file=sys.stderr)
    print(f"{ERROR_MARK}{blame(failed, ranks)}", file=sys.stderr)


def _leave_bar() -> None:
    """Repairs a terminal in which a progress bar was killed: begins a new line and shows the cursor."""
    if sys.stdout.isatty():
        print("\x1b[?25h", flush=True)


@contextlib.contextmanager
def _restored_signals() -> Iterator[None]:
    """Puts back the handlers that elastic replaces."""
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _serve_store(config: TrainConfig) -> dist.TCPStore:
    asked = config.port if config.port is not None else env_number("MASTER_PORT", default=0)
    listener = _listen(asked)
    port, timeout = listener.getsockname()[1], timedelta(seconds=config.timeout_s)
    try:
        return dist.TCPStore(
            HOST, port, config.nproc, True, timeout, wait_for_workers=False, master_listen_fd=listener.detach()
        )
    except dist.DistNetworkError as error:
        raise RuntimeError(
            f"[train.launcher] the store where the ranks meet did not answer within --timeout-s {config.timeout_s:g}: "
            "choose a longer --timeout-s"
        ) from error


def _listen(port: int) -> socket.socket:
    """Returns a socket that listens at `port`, or at a port that the system picks where it is 0. Raises RuntimeError
    where the port is in use."""
    listener = socket.socket()
    try:
        if port:
            # For a minute the system keeps the connections of a launcher that was killed. They alone do not make a port
            # one in use; where a program listens there, the option changes nothing.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen()
    except (OSError, OverflowError) as error:
        listener.close()
        raise RuntimeError(
            f"[train.launcher] the ranks cannot meet at port {port} ({sentence(error)}): "
            "choose another --port, or leave it and MASTER_PORT out"
        ) from error
    return listener


def _command(config: TrainConfig) -> list[str]:
    return [sys.executable, "-m", "octavo", "train", *config.to_args()]


def _environment(config: TrainConfig, rank: int, port: int) -> dict[str, str]:
    env = dict(os.environ)
    env.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(config.nproc), LOCAL_WORLD_SIZE=str(config.nproc))
    env.update({"MASTER_ADDR": HOST, "MASTER_PORT": str(port), PARENT_STORE: "1"})
    env.setdefault("OMP_NUM_THREADS", str(threads_of_rank(config.nproc)))
    env.setdefault("TOKENIZERS_PARALLELISM", "false")
    env.setdefault("PYTHONSAFEPATH", "1")  # from Python 3.11 on: `python -m` ignores modules in the user's folder
    if "lo" in (name for _, name in socket.if_nameindex()):
        # Gloo otherwise looks up this machine's own name, which not every network can answer.
        env.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return env
