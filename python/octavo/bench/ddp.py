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
ALONE, TORCH, TORCH_FP16 = "alone", "torch", "torch fp16"  # alone: without communication


@dataclass(frozen=True)
class Row:
    plan: str
    milliseconds: float
    of_no_communication: float  # 1.0: communication costs nothing
    times_faster_than_torch: float
    wire_bytes: int  # a step and rank; of torch what a ring sends
    waiting_ms: float | None  # of the hook's thread, a step; None: there is none
    codec_ms: float | None


HEADINGS = {
    "plan": "plan",
    "milliseconds": "ms",
    "of_no_communication": "of alone",
    "times_faster_than_torch": "x torch",
    "wire_bytes": "bytes sent",
    "waiting_ms": "wait ms",
    "codec_ms": "codec ms",
}


def run_ranks(nproc: int, arguments: list[str]) -> int:
    """Starts this benchmark as `nproc` local ranks; returns the exit status."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={nproc}"]
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    return subprocess.call([*torchrun, "-m", "octavo", "bench", "ddp", *arguments], env=environment)


def is_rank() -> bool:
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def is_main() -> bool:
    """Whether this process is rank 0, which writes, or has yet to start the ranks."""
    return os.environ.get("RANK", "0") == "0"


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
    model_bytes = 4 * sum(parameter.numel() for parameter in steps[TORCH].model.parameters())
    ring = 2 * (dist.get_world_size() - 1) * model_bytes // dist.get_world_size()
    sent_by_torch = {ALONE: 0, TORCH: ring, TORCH_FP16: ring // 2}
    rows = [_row(seconds, name, sent_by_torch[name]) for name in sent_by_torch]
    rows += [_row(seconds, plan, *_account(handle)) for plan, handle in handles.items()]
    rank = dist.get_rank()
    dist.barrier()
    dist.destroy_process_group()
    return rows if rank == 0 else None


def as_dicts(rows: list[Row]) -> list[dict[str, object]]:
    return [asdict(row) for row in rows]


def _account(handle: octavo.Handle) -> tuple[int, float, float]:
    """Bytes sent, milliseconds of waiting and of coding, a step."""
    stats = handle.stats()
    waiting = stats["wait_up_s"] + stats["wait_down_s"]
    codec = stats["encode_s"] + stats["reduce_s"] + stats["decode_s"]
    return stats["wire_bytes"] // stats["steps"], 1e3 * waiting / stats["steps"], 1e3 * codec / stats["steps"]


def _row(
    seconds: Seconds, name: str, wire_bytes: int, waiting_ms: float | None = None, codec_ms: float | None = None
) -> Row:
    return Row(
        plan=name,
        milliseconds=1e3 * typical(seconds, name),
        of_no_communication=ratio(seconds, name, ALONE),
        times_faster_than_torch=ratio(seconds, TORCH, name),
        wire_bytes=wire_bytes,
        waiting_ms=waiting_ms,
        codec_ms=codec_ms,
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
