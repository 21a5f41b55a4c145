# SPDX-License-Identifier: Apache-2.0
"""Collectives that send codes instead of numbers."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from octavo import _C
from octavo._C import Plan
from octavo.plan import as_plan
from octavo.private_group import private_group

# One thread: collectives must run in the order in which they were called, the same on all ranks.
_groups: WeakKeyDictionary[dist.ProcessGroup, dist.ProcessGroup] = WeakKeyDictionary()
_queue = ThreadPoolExecutor(max_workers=1, thread_name_prefix="octavo_all_reduce")


class PendingAllReduce:
    """What ``all_reduce(async_op=True)`` returns; ``wait()`` blocks until the tensor holds the result."""

    def __init__(self, future: "Future[None]"):
        self._future = future

    def wait(self) -> bool:
        self._future.result()
        return True

    def is_completed(self) -> bool:
        return self._future.done()


def all_reduce(
    tensor: Tensor,
    plan: str | Plan = "int4",
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
    *,
    op: dist.ReduceOp = dist.ReduceOp.SUM,
    timeout_s: float = 300.0,
) -> PendingAllReduce | None:
    """Adds ``tensor`` over the ranks of ``group``, in place, with the plan's codec on the wire.

    ``op``: ``SUM`` or ``AVG``. ``sign-vote`` gives the majority's sign (0 for a tie) whatever ``op`` is. Plans with
    ``+ef`` are refused: one call keeps no residual; ``octavo.compress`` does. The result has the same bits on every
    rank. Raises ValueError, TypeError, TimeoutError after ``timeout_s``, RuntimeError where a peer failed.
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"[collectives.all_reduce] expected a tensor, got {type(tensor).__name__}")
    if op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        raise ValueError(f"[collectives.all_reduce] expected op SUM or AVG, got {op}")
    plan = as_plan(plan)
    group = group if group is not None else dist.group.WORLD
    if group not in _groups:
        _groups[group] = private_group(group, timeout_s)
    average = op == dist.ReduceOp.AVG
    ready = _mark(tensor)
    future = _queue.submit(_all_reduce, ready, tensor.detach(), plan, _groups[group], average, timeout_s)
    if async_op:
        return PendingAllReduce(future)
    future.result()
    return None


def _mark(tensor: Tensor) -> torch.Event | None:
    """What the tensor's device has to do before its memory may be read."""
    if tensor.device.type == "cpu":
        return None
    event = torch.Event(tensor.device)
    event.record(torch.accelerator.current_stream(tensor.device))
    return event


def _all_reduce(ready: torch.Event | None, *arguments: Any) -> None:
    if ready is not None:
        ready.synchronize()
    _C.all_reduce(*arguments)
