# SPDX-License-Identifier: Apache-2.0
"""Starts the ranks of `octavo bench ddp`, on this machine or on hosts joined at a given rate, and gathers rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import octavo
from octavo.bench import ddp
from octavo.bench.ddp import Row, Size, is_rank
from octavo.bench.hosts import RATES, UNSHAPED, Hosts, why_no_hosts
from octavo.bench.torch_hooks import DOUBTFUL
from octavo.train.plan_text import split_rounds

DEADLINE_S = 3600.0
PORT = 29511
"""The port at which ranks on hosts of their own meet: every port is free in their network stack."""


def measure(
    contenders: Sequence[str], *, nproc: int, rounds: int, sizes: Sequence[Size], links: Sequence[str | None]
) -> list[Row]:
    """Measures for every link all plans together, at all sizes, then each of torch's hooks in a job of its own, at the
    first size.

    `links`: rates among `RATES`, None for this machine as it is. Raises ValueError for what cannot be measured and,
    where a job fails, RuntimeError with the ranks' last error line.
    """
    plans, hooks = _split(contenders)
    check_links(links)
    rows = []
    for link in links:
        measured = _job([*plans, *_options(rounds, sizes)], nproc, link) if plans else []
        for hook in hooks:
            measured += _job([hook, *_options(rounds, sizes[:1])], nproc, link)
        rows += [replace(row, link=link or UNSHAPED) for row in measured]
    return rows


def measure_as_rank(
    contenders: Sequence[str], *, rounds: int, sizes: Sequence[Size], report: Path | None
) -> list[Row] | None:
    """Measures as one rank: either plans, whose rows it returns on rank 0, or one hook, whose row it writes to
    `report`."""
    plans, hooks = _split(contenders)
    if not hooks:
        return ddp.bench(plans, rounds, sizes)
    if plans or len(hooks) > 1:
        raise ValueError(f"[bench.ddp_jobs] {hooks[0]} may hang: under torchrun measure it alone")
    ddp.try_hook(hooks[0], rounds, sizes[0], lambda row: _write([row], report))
    return None


def _write(rows: Sequence[Row], path: Path | None) -> None:
    if path is not None:
        path.write_text(json.dumps([asdict(row) for row in rows]))


def _split(contenders: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the plans, and torch's hooks. Raises ValueError for what is neither."""
    plans = [name for name in contenders if name not in DOUBTFUL]
    check_plans(plans)
    return plans, [name for name in contenders if name in DOUBTFUL]


def check_plans(plans: Sequence[str]) -> None:
    """Raises ValueError for what is neither a plan nor rounds of local steps with a plan."""
    for plan in plans:
        octavo.Plan(split_rounds(plan)[1])


def check_links(links: Sequence[str | None]) -> None:
    """Raises ValueError for links that cannot be made, or not here."""
    if is_rank() and any(links):
        raise ValueError(
            "[bench.ddp_jobs] --link makes hosts of its own, and under torchrun the link is that of your hosts: leave "
            "it out, or start the bench without torchrun"
        )
    for link in links:
        if link is not None and link not in RATES:
            raise ValueError(f"[bench.ddp_jobs] --link is one of {', '.join(RATES)}, not '{link}'")
    reason = why_no_hosts() if any(links) else None
    if reason is not None:
        raise ValueError(f"[bench.ddp_jobs] --link makes a network of its own, which is not possible here: {reason}")


def _options(rounds: int, sizes: Sequence[Size]) -> list[str]:
    first = sizes[0]
    shape = [f"--layers={first.layers}", f"--width={first.width}", *[f"--rows={size.rows}" for size in sizes]]
    return [f"--rounds={rounds}", *shape]


def _job(arguments: list[str], nproc: int, link: str | None) -> list[Row]:
    return [Row(**row) for row in json.loads(run_job(["bench", "ddp", *arguments], nproc, link))]


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


def _run_here(command: list[str], nproc: int, folder: str) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={nproc}"]
    torchrun.append(f"--log-dir={folder}")  # its own would be left in the folder of temporary files
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    process = subprocess.Popen(
        [*torchrun, *command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        said, _ = process.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"[bench.ddp_jobs] the ranks did not end in {DEADLINE_S:.0f} s") from None
    finally:
        _end(process)
    if process.returncode:
        raise RuntimeError(_failure(process.returncode, said))


def _end(process: subprocess.Popen[str]) -> None:
    """Ends torchrun by a signal on which it ends its ranks; they would outlive it if it were killed."""
    process.terminate()
    try:
        process.wait(timeout=40)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _run_on_hosts(command: list[str], nproc: int, link: str) -> None:
    with Hosts(nproc, link) as hosts:
        ranks = [
            hosts.start(rank, [sys.executable, *command], _environment(rank, nproc, hosts.address(0)))
            for rank in range(nproc)
        ]
        for rank in ranks:
            try:
                said, _ = rank.communicate(timeout=DEADLINE_S)
            except subprocess.TimeoutExpired:
                raise RuntimeError(f"[bench.ddp_jobs] the ranks did not end in {DEADLINE_S:.0f} s") from None
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
    return f"[bench.ddp_jobs] a rank ended with exit status {status} and said: {last}"
