# SPDX-License-Identifier: Apache-2.0
"""`octavo train` under SIGKILL: the curve goes on unchanged, a dead rank ends the job, and no process is left."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fork_server import run_code
from patience import PATIENCE
from rank_pool import RankPool
from train_runs import clean_environment, nano_config, read_curve, run_as_rank, train_command
from transformers import AutoModelForCausalLM

from octavo.train.config import TrainConfig

STEPS = 60
#: The number of threads that a rank of RankPool has; the order of sums depends on it.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}

pytestmark = pytest.mark.ranks


def start(config: TrainConfig, **environment: str) -> subprocess.Popen[str]:
    """Starts a job with its output in pipes."""
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return subprocess.Popen(train_command(config), env=clean_environment(**environment), **pipes)


def finish(job: subprocess.Popen[str]) -> str:
    """Waits for a job that must succeed. Returns what it has printed."""
    shown, complaint = job.communicate(timeout=PATIENCE * 90)
    assert job.returncode == 0, complaint
    return shown


@pytest.fixture(scope="module")
def golden(tmp_path_factory) -> TrainConfig:
    """Returns the config of a run that nothing has broken, made in processes that do not have to import torch each."""
    config = nano_config(tmp_path_factory.mktemp("golden"), steps=STEPS, checkpoint_every=4)
    ranks = RankPool(config.nproc)
    try:
        ranks.run(run_as_rank, config, timeout_s=config.timeout_s)
    finally:
        ranks.stop()
    return config


def steps_done(config: TrainConfig) -> int:
    path = Path(config.out) / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for_step(job: subprocess.Popen[str], config: TrainConfig, step: int) -> None:
    deadline = time.monotonic() + PATIENCE * 60
    while steps_done(config) < step:
        assert job.poll() is None, f"the job ended before step {step}: {job.communicate()[1]}"
        assert time.monotonic() < deadline, f"no step {step} in time"
        time.sleep(0.01)


def ranks_of(job: subprocess.Popen[str]) -> list[int]:
    """Returns the process ids of a job's ranks, in rank order."""
    return sorted(int(pid) for pid in Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split())


def wait_until_gone(pids: list[int], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, f"some of {pids} are left"
        time.sleep(0.02)


def kill_loop(folder: Path, **options: object) -> None:
    """Runs kill_loop.py, which compares killed runs with an unbroken one, in a process that need not import torch."""
    script = str(Path(__file__).with_name("kill_loop.py"))
    code = f"import runpy; runpy.run_path({script!r}, run_name='__main__')"
    exit_code, said, complaint = run_code(code, folder, json.dumps(options), timeout_s=500)
    assert exit_code == 0, complaint
    assert said.endswith("the same curve\n")


@pytest.mark.timeout(600)
def test_ranks_killed_at_random_moments_resume_to_the_last_digit(tmp_path):
    kill_loop(tmp_path, kills=int(os.environ.get("OCTAVO_KILLS", "9")), last=0)


@pytest.mark.timeout(600)
def test_ranks_killed_inside_of_rounds_resume_to_the_last_digit(tmp_path):
    kills = int(os.environ.get("OCTAVO_KILLS", "4"))
    kill_loop(tmp_path, kills=kills, last=10, plan="sign+ef", outer=6, outer_delay=2, outer_fragments=2)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("plan", "ranks"), [("dense", 4), ("sign+ef", 3)])
def test_several_buckets_and_ranks_resume_to_the_last_digit(tmp_path, plan, ranks):
    """DDP sorts its buckets after the first step; with more than two ranks the sums then have another order."""
    kill_loop(tmp_path, kills=0, last=3, plan=plan, nproc=ranks, model="tiny", steps=6)


@pytest.mark.timeout(180)
def test_a_whole_job_killed_and_started_again_ends_as_if_unbroken(golden, tmp_path):
    victim = dataclasses.replace(golden, out=str(tmp_path / "victim"))
    job = start(victim, **ONE_THREAD)
    wait_for_step(job, victim, 15)
    ranks = ranks_of(job)
    job.kill()
    job.communicate(timeout=10)
    wait_until_gone(ranks)
    assert steps_done(victim) < STEPS
    shown = finish(start(victim, **ONE_THREAD))
    assert "resuming after step" in shown
    assert read_curve(Path(victim.out)) == read_curve(Path(golden.out))
    assert AutoModelForCausalLM.from_pretrained(Path(victim.out) / "checkpoint").num_parameters() > 0


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("rank", "outer"), [(0, 0), (1, 1000)])
def test_a_killed_rank_ends_the_job_within_ten_seconds_with_its_name(tmp_path, rank, outer):
    """With 1000 local steps the other rank does not notice; test_launcher.py has either rank notice before the
    launcher does."""
    config = nano_config(tmp_path, steps=5000, checkpoint_every=500, eval_every=5000, outer=outer)
    job = start(config)
    wait_for_step(job, config, 3)
    ranks = ranks_of(job)
    killed_at = time.monotonic()
    os.kill(ranks[rank], signal.SIGKILL)
    complaint = job.communicate(timeout=15)[1]
    assert time.monotonic() - killed_at < 10
    assert job.returncode == 1
    assert complaint.splitlines()[-1].startswith(f"error: rank {rank} was killed by SIGKILL")
    wait_until_gone(ranks)


@pytest.mark.timeout(180)
def test_torchrun_starts_a_broken_job_again_and_it_goes_on(golden, tmp_path):
    """--fresh removes the run before, but not what the interrupted attempt has made."""
    victim = dataclasses.replace(golden, out=str(tmp_path / "victim"), fresh=True)
    own = ("--standalone", "--nproc-per-node=2", "--max-restarts=1", "--monitor-interval=0.1", "-m", "octavo")
    command = [sys.executable, "-m", "torch.distributed.run", *own, "train", *victim.to_args()]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    job = subprocess.Popen(command, env=clean_environment(**ONE_THREAD), **pipes)
    wait_for_step(job, victim, 15)
    os.kill(ranks_of(job)[1], signal.SIGKILL)
    assert "resuming after step" in finish(job)
    assert read_curve(Path(victim.out)) == read_curve(Path(golden.out))


@pytest.mark.timeout(120)
def test_a_rank_killed_under_another_launcher_ends_the_others(tmp_path):
    """As with torchrun on several hosts, no launcher watches all ranks: each rank itself notices that its peer is
    gone."""
    slow = dict(steps=5000, eval_every=5000)
    configs = [nano_config(tmp_path, out=str(tmp_path / f"disk-{rank}"), **slow) for rank in (0, 1)]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    place = dict(WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port, GLOO_SOCKET_IFNAME="lo")
    jobs = [start(config, RANK=str(rank), **place) for rank, config in enumerate(configs)]
    wait_for_step(jobs[0], configs[0], 5)
    killed_at = time.monotonic()
    jobs[1].kill()
    complaint = jobs[0].communicate(timeout=15)[1]
    assert time.monotonic() - killed_at < 10
    assert jobs[0].returncode == 75
    assert complaint.splitlines()[-1].startswith("error: lost another rank: ")
    jobs[1].communicate(timeout=10)
    # Two disks: rank 0's has the model; both have a manifest and the state of their own rank.
    names = [{path.name for path in (tmp_path / f"disk-{r}" / "checkpoint" / "latest").iterdir()} for r in (0, 1)]
    assert {"model.safetensors", "manifest.json", "rank-00000-of-00002.safetensors"} <= names[0]
    assert names[1] == {"manifest.json", "rank-00001-of-00002.safetensors"}
