# SPDX-License-Identifier: Apache-2.0
"""Starts the ranks of a job on this machine, watches them, and ends them all with the first that fails.

The store where the ranks meet lives in this process, on a port that the system picks while binding it:
there is no moment in which another program could take it. Ranks are process groups of their own that the
kernel kills with this process, so a SIGKILL here leaves no orphans.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from datetime import timedelta

import torch.distributed as dist

from octavo.train.config import TrainConfig, check_local_ranks, usable_cores
from octavo.train.errors import ERROR_MARK, EXIT_JOB, sentence
from octavo.train.launch.rank_process import RankProcess, blame
from octavo.train.launch.world import PARENT_STORE, env_number

HOST = "127.0.0.1"
POLL_S = 0.05
GATHER_S = 1.0
"""How long after the first failure the others may take to fail too: the cause is then picked among them."""
GRACE_S = 3.0
"""How long a rank has to end after SIGTERM, before SIGKILL."""


def launch(config: TrainConfig) -> int:
    """Runs `config` on `config.nproc` local ranks; returns the exit status of the job, 0 where all went well.

    Raises ValueError for more ranks than make sense, RuntimeError for a port in use; nothing is started then.
    """
    check_local_ranks(config.nproc, usable_cores())
    store = _serve_store(config)
    stop = _StopSignals()
    ranks: list[RankProcess] = []
    try:
        for rank in range(config.nproc):
            ranks.append(RankProcess(rank, _command(config), _environment(config, rank, store.port)))
        status = _watch(ranks, stop)
    finally:
        end_all(ranks)
        stop.restore()
    if stop.caught:
        _leave_bar()
        name = signal.Signals(stop.caught).name
        print(
            f"stopped by {name}: the same command goes on from its last checkpoint, if there is one yet",
            file=sys.stderr,
        )
        return 128 + stop.caught
    return status


def end_all(ranks: list[RankProcess]) -> None:
    """Ends every rank that still runs: SIGTERM, a grace period, SIGKILL. Returns once all are gone."""
    for rank in ranks:
        rank.signal(signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while any(rank.is_running() for rank in ranks) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    for rank in ranks:
        rank.signal(signal.SIGKILL)
        rank.close()


def _watch(ranks: list[RankProcess], stop: _StopSignals) -> int:
    """Waits until all ranks are done, one has failed, or a signal asks to stop."""
    while not stop.caught:
        failed = [rank for rank in ranks if rank.has_failed()]
        if failed:
            return _report_failure(ranks)
        if not any(rank.is_running() for rank in ranks):
            return 0
        time.sleep(POLL_S)
    return 128 + stop.caught


def _report_failure(ranks: list[RankProcess]) -> int:
    deadline = time.monotonic() + GATHER_S
    while any(rank.is_running() for rank in ranks) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    end = [rank for rank in ranks if rank.has_failed()]
    _leave_bar()
    print(f"{ERROR_MARK}{blame(end)}", file=sys.stderr)
    return EXIT_JOB


def _leave_bar() -> None:
    """Puts a terminal right in which a progress bar was killed: on a new line, with the cursor shown."""
    if sys.stdout.isatty():
        print("\x1b[?25h", flush=True)


def _serve_store(config: TrainConfig) -> dist.TCPStore:
    asked = config.port if config.port is not None else env_number("MASTER_PORT", default=0)
    listener = socket.socket()
    try:
        listener.bind((HOST, asked))
    except (OSError, OverflowError) as error:
        raise RuntimeError(
            f"[train.launcher] expected a free port for the ranks to meet, got {asked} "
            f"({sentence(error)}): choose another --port, or leave it and MASTER_PORT out"
        ) from error
    listener.listen()
    port, timeout = listener.getsockname()[1], timedelta(seconds=config.timeout_s)
    return dist.TCPStore(
        HOST, port, config.nproc, True, timeout, wait_for_workers=False, master_listen_fd=listener.detach()
    )


def _command(config: TrainConfig) -> list[str]:
    return [sys.executable, "-m", "octavo", "train", *config.to_args()]


def _environment(config: TrainConfig, rank: int, port: int) -> dict[str, str]:
    env = dict(os.environ)
    env.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(config.nproc), LOCAL_WORLD_SIZE=str(config.nproc))
    env.update({"MASTER_ADDR": HOST, "MASTER_PORT": str(port), PARENT_STORE: "1"})
    env.setdefault("OMP_NUM_THREADS", str(max(1, usable_cores() // config.nproc)))
    env.setdefault("TOKENIZERS_PARALLELISM", "false")
    if "lo" in (name for _, name in socket.if_nameindex()):
        # Gloo otherwise looks up this machine's own name, which not every network can answer.
        env.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return env


class _StopSignals:
    """Remembers Ctrl-C, SIGTERM and SIGHUP instead of dying of them, so that the ranks can be ended first."""

    _SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.caught = 0
        self._old = {number: signal.signal(number, self._catch) for number in self._SIGNALS}

    def _catch(self, number: int, _frame: object) -> None:
        self.caught = self.caught or number

    def restore(self) -> None:
        """Puts the former handlers back."""
        for number, handler in self._old.items():
            signal.signal(number, handler)
