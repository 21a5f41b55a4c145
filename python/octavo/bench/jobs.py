# SPDX-License-Identifier: Apache-2.0
"""Runs a command as the ranks of a job, on this machine or on hosts joined at a given rate."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, TypeVar

from octavo.bench.linked_hosts import RATES, Hosts, why_no_hosts
from octavo.bench.ranks import is_rank
from octavo.cores import threads_of_rank

AnyRow = TypeVar("AnyRow")
DEADLINE_S = 24 * 3600.0
"""For what hangs outside of collectives, which have timeouts of their own. All contenders at 10 Mbit/s take hours."""
_LATE = f"[bench.jobs] the ranks did not end in {DEADLINE_S / 3600:.0f} hours"
PORT = 29511
"""The port at which ranks on hosts of their own meet: every port is free in their network stack."""


def check_links(links: Sequence[str | None]) -> None:
    """Raises ValueError for links that cannot be made, or not here."""
    if is_rank() and any(links):
        raise ValueError(
            "[bench.jobs] --link makes hosts of its own, and under torchrun the link is that of your hosts: leave "
            "it out, or start the bench without torchrun"
        )
    for link in links:
        if link is not None and link not in RATES:
            raise ValueError(f"[bench.jobs] --link is one of {', '.join(RATES)}, not '{link}'")
    reason = why_no_hosts() if any(links) else None
    if reason is not None:
        raise ValueError(f"[bench.jobs] --link makes a network of its own, which is not possible here: {reason}")


def run_job(command: Sequence[str], nproc: int, link: str | None) -> str:
    """Runs a command of `octavo` as the ranks of a job and returns what rank 0 writes by ``--json``.

    `link`: among `RATES`, or None for this machine as it is. Raises RuntimeError with the ranks' last error line.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        program = ["-m", "octavo", *command, f"--json={path}"]
        if link is None:
            _run_here(program, nproc, folder)
        else:
            _run_on_hosts(program, nproc, link)
        return path.read_text()


def rows_of_job(row_of: Callable[..., AnyRow], command: Sequence[str], nproc: int, link: str | None) -> list[AnyRow]:
    """Runs a command as `run_job` does and returns its rows, each made by `row_of` from its fields; those of a job on
    hosts of their own name their link."""
    of_job = {} if link is None else {"link": link}
    return [row_of(**{**row, **of_job}) for row in json.loads(run_job(command, nproc, link))]


def _run_here(command: list[str], nproc: int, folder: str) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={nproc}"]
    torchrun.append(f"--log-dir={folder}")  # its own would be left in the folder of temporary files
    environment = {"OMP_NUM_THREADS": str(threads_of_rank(nproc)), **os.environ}
    process = subprocess.Popen(
        [*torchrun, *command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        said, _ = process.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        raise RuntimeError(_LATE) from None
    finally:
        end_launcher(process)
    if process.returncode:
        raise RuntimeError(_failure(process.returncode, said))


def end_launcher(process: subprocess.Popen[Any], within_s: float = 40.0) -> None:
    """Ends torchrun or `octavo train` by a signal on which it ends its ranks first; torchrun takes up to 30 s for it.
    It is killed only after `within_s`, because the ranks of torchrun would outlive it."""
    process.terminate()
    try:
        process.wait(timeout=within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _run_on_hosts(command: list[str], nproc: int, link: str) -> None:
    with ThreadPoolExecutor(nproc) as pool, Hosts(nproc, link) as hosts:
        ranks = [
            hosts.start(rank, [sys.executable, *command], _environment(rank, nproc, hosts.address(0)))
            for rank in range(nproc)
        ]
        # until the first rank fails, which says why: the others then fail because they have lost it
        ended = [pool.submit(_wait_for, rank) for rank in ranks]
        done, running = wait(ended, timeout=DEADLINE_S, return_when=FIRST_EXCEPTION)
        for rank in done:
            rank.result()
        if running:
            raise RuntimeError(_LATE)


def _wait_for(rank: subprocess.Popen[str]) -> None:
    """Raises RuntimeError where a rank ends with an error."""
    said, _ = rank.communicate()
    if rank.returncode:
        raise RuntimeError(_failure(rank.returncode, said))


def _environment(rank: int, nproc: int, main: str) -> dict[str, str]:
    place = dict(RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE=str(nproc), MASTER_ADDR=main, MASTER_PORT=str(PORT))
    return {**os.environ, **place, "OMP_NUM_THREADS": "1"}


def _failure(status: int, said: str) -> str:
    """Returns the error of a failed rank: its last line that names an error, without torchrun's own account of it."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if "rror: " in line and "torch.distributed.elastic" not in line]
    last = (errors or lines or ["nothing"])[-1]
    return f"[bench.jobs] a rank ended with exit status {status} and said: {last}"
