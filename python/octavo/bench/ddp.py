# SPDX-License-Identifier: Apache-2.0
"""The step of a data-parallel model, by plan: 24 linear layers of 1024 x 1024 (25.2 M parameters, 100 MB of gradients).

Every plan takes its turn in every round, next to torch's own hooks and to the same step without communication.
"""

import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import octavo
from octavo.bench.timing import Seconds, ratio, take_turns, typical

DEFAULT_PLANS = ["dense", "bf16", "int4+ef", "sign+ef"]
ALONE, TORCH, TORCH_FP16 = "no communication", "torch", "torch fp16"


@dataclass(frozen=True)
class Row:
    plan: str
    milliseconds: float
    of_no_communication: float  # 1.0: communication costs nothing
    times_faster_than_torch: float
    wire_bytes: int  # a step and rank; 0 where torch does not say
    waiting_ms: float  # of the hook's thread, a step
    codec_ms: float


def run_ranks(nproc: int, arguments: list[str]) -> int:
    """Starts this benchmark as `nproc` local ranks; returns the exit status."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={nproc}"]
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    return subprocess.call([*torchrun, "-m", "octavo", "bench", "ddp", *arguments], env=environment)


def is_rank() -> bool:
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def bench(plans: list[str], rounds: int = 8, layers: int = 24, width: int = 1024) -> list[Row] | None:
    """Measures as one rank of the job that the environment describes. Returns the rows on rank 0, None elsewhere."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    steps = {ALONE: _Alone(layers, width), TORCH: _Step(layers, width), TORCH_FP16: _Step(layers, width)}
    steps[TORCH_FP16].model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    handles = {}
    for plan in plans:
        steps[plan] = _Step(layers, width)
        handles[plan] = octavo.compress(steps[plan].model, plan)

    def line_up(name: str) -> None:
        steps[name].model.zero_grad(set_to_none=False)
        dist.barrier()

    seconds = take_turns(steps, rounds, warmup=3, before=line_up)
    rows = [_row(seconds, name, handles[name].stats() if name in handles else {}) for name in steps]
    rank = dist.get_rank()
    dist.barrier()
    dist.destroy_process_group()
    return rows if rank == 0 else None


def as_dicts(rows: list[Row]) -> list[dict[str, object]]:
    return [asdict(row) for row in rows]


def _row(seconds: Seconds, name: str, stats: dict[str, float]) -> Row:
    def each_step(*keys: str) -> float:
        return sum(stats.get(key, 0) for key in keys) / max(1, stats.get("steps", 1))

    return Row(
        plan=name,
        milliseconds=1e3 * typical(seconds, name),
        of_no_communication=ratio(seconds, name, ALONE),
        times_faster_than_torch=ratio(seconds, TORCH, name),
        wire_bytes=int(each_step("wire_bytes")),
        waiting_ms=1e3 * each_step("wait_up_s", "wait_down_s"),
        codec_ms=1e3 * each_step("encode_s", "reduce_s", "decode_s"),
    )


class _Alone:
    """One step of the model without communication."""

    def __init__(self, layers: int, width: int):
        torch.manual_seed(0)
        self.model: nn.Module = nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(layers)])
        self.batch = torch.randn(4, width)

    def __call__(self) -> None:
        self.model(self.batch).square().mean().backward()


class _Step(_Alone):
    """The same step under DDP."""

    def __init__(self, layers: int, width: int):
        super().__init__(layers, width)
        self.model = DistributedDataParallel(self.model, bucket_cap_mb=25, gradient_as_bucket_view=True)
