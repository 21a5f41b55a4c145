# SPDX-License-Identifier: Apache-2.0
"""Collectives whose messages are codes instead of numbers."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from octavo import _C
from octavo._C import Plan
from octavo.arguments import require_seed
from octavo.optim.shards import is_sharded
from octavo.plan import as_plan
from octavo.rendezvous import Rendezvous, as_group, require_timeout


class PendingAllReduce:
    """The handle that ``all_reduce(async_op=True)`` returns. ``wait()`` blocks until the tensor holds the result, and
    raises what the call has raised. ``is_completed()`` says whether the call has ended."""

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
    seed: int = 0,
    timeout_s: float = 300.0,
) -> PendingAllReduce | None:
    """Replaces ``tensor`` by its sum over the ranks of ``group``, in place; the ranks send codes of the plan's codec.
    All ranks of the group call it with tensors of the same shape.

    - ``tensor``: a dense tensor of a real floating dtype with this rank's own values. Those of float64 are sent as
      float32 at most, except by ``dense``.
    - ``plan``: an ``octavo.Plan`` or its text. Plans with ``+ef`` are refused, because one call keeps no residual; use
      ``octavo.compress`` for them. ``sign-vote`` gives the majority's sign (0 for a tie), whatever ``op`` is.
    - ``group``: the ranks; None: all ranks.
    - ``async_op``: whether to return a ``PendingAllReduce`` at once. Otherwise the call returns None when the tensor
      holds the result.
    - ``op``: ``SUM``, or ``AVG`` for the average.
    - ``seed``: the seed of the run, the same on all ranks. The random bits that a plan draws depend on it and on the
      number of the call on the group.
    - ``timeout_s``: how long to wait for the other ranks, in seconds.

    The result has the same bits on every rank. Calls on one group run in the order in which they are made; calls on
    different groups do not wait for each other.

    Raises ValueError or TypeError for arguments that make no sense, TimeoutError after ``timeout_s``, and RuntimeError
    where another rank failed, or where another rank called it with another plan, ``op``, ``seed`` or tensor size. Where
    the ranks' arguments differ, the tensor stays as it was. After any other TimeoutError or RuntimeError its content is
    undefined. A call that is refused on one rank fails on the others, too. Once the call has failed on all ranks of the
    group, in whatever way, their next call connects them anew.
    """
    group = as_group(group, "collectives.all_reduce")
    channel = _channel(group)
    try:
        plan = _checked_plan(tensor, plan, op, seed, timeout_s)
    except Exception:
        channel.disconnect()
        raise
    future = channel.submit(group, tensor, plan, op == dist.ReduceOp.AVG, seed, timeout_s)
    if async_op:
        return PendingAllReduce(future)
    future.result()
    return None


def _checked_plan(tensor: Tensor, plan: str | Plan, op: dist.ReduceOp, seed: int, timeout_s: float) -> Plan:
    """Returns the plan. Raises ValueError or TypeError for arguments of ``all_reduce`` that make no sense."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"[collectives.all_reduce] expected a tensor, got {type(tensor).__name__}")
    if is_sharded(tensor) or tensor.is_meta:
        kind = "one without memory, of the meta device" if tensor.is_meta else "a DTensor: pass its to_local()"
        raise TypeError(f"[collectives.all_reduce] expected a tensor of this rank's own values, got {kind}")
    if op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
        raise ValueError(f"[collectives.all_reduce] expected op SUM or AVG, got {op}")
    require_seed(seed, "collectives.all_reduce")
    require_timeout(timeout_s, "collectives.all_reduce")
    return as_plan(plan)


class _Channel:
    """The thread and the Gloo back end that ``all_reduce`` keeps for a process group.

    The thread runs the group's calls in their order, which is the same on all of its ranks. It connects the back end at
    its first call, and again after a failure, which leaves connections in an unknown state.
    """

    def __init__(self) -> None:
        self._queue = ThreadPoolExecutor(max_workers=1, thread_name_prefix="octavo_all_reduce")
        self._backend: dist.ProcessGroupGloo | None = None
        self._calls = 0  # the number of calls on this back end: the same on all ranks

    def submit(
        self, group: dist.ProcessGroup, tensor: Tensor, plan: Plan, average: bool, seed: int, timeout_s: float
    ) -> "Future[None]":
        # The tensor is in a list, which the call empties: the queue holds its arguments for a moment after the call.
        return self._queue.submit(self._run, group, _mark(tensor), [tensor.detach()], plan, average, seed, timeout_s)

    def disconnect(self) -> None:
        """Makes the next call connect anew, because this one was refused: ranks whose arguments are right wait in vain,
        and then connect anew, too."""
        self._queue.submit(self._drop)  # behind the calls that were made before

    def _drop(self) -> None:
        self._backend = None

    def _run(
        self,
        group: dist.ProcessGroup,
        ready: torch.Event | None,
        handed_over: list[Tensor],
        plan: Plan,
        average: bool,
        seed: int,
        timeout_s: float,
    ) -> None:
        tensor = handed_over.pop()
        if ready is not None:
            ready.synchronize()
        try:
            if self._backend is None:
                self._backend = Rendezvous(group, "collectives.all_reduce", timeout_s).connect()
                self._calls = 0
            self._calls += 1
            with torch.inference_mode(tensor.is_inference()):  # the mode of the caller's thread
                _C.all_reduce(tensor, plan, self._backend, average, timeout_s, self._calls, seed)
        except BaseException:  # a wrong argument, too, as in disconnect()
            self._drop()
            raise


_channels: WeakKeyDictionary[dist.ProcessGroup, _Channel] = WeakKeyDictionary()
_channels_lock = threading.Lock()


def _channel(group: dist.ProcessGroup) -> _Channel:
    with _channels_lock:
        if group not in _channels:
            _channels[group] = _Channel()
        return _channels[group]


def _mark(tensor: Tensor) -> torch.Event | None:
    """Returns an event that is recorded behind the work that the tensor's device must finish before the tensor's memory
    may be read; None on the CPU."""
    if tensor.device.type == "cpu":
        return None
    event = torch.Event(tensor.device)
    event.record(torch.accelerator.current_stream(tensor.device))
    return event
