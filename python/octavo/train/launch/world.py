# SPDX-License-Identifier: Apache-2.0
"""The ranks of a job: how they meet, agree and part.

Works under `octavo train`, torchrun, or anything that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from octavo.train import errors
from octavo.train.errors import JobError, is_peer_loss, sentence, show_traceback

PARENT_STORE = "OCTAVO_PARENT_STORE"
"""The environment variable that `octavo train` sets to 1 for its ranks: the parent serves the store at
MASTER_ADDR:MASTER_PORT."""

STARTED_OVER = "octavo/started over"
"""The key that the launcher's store has once `--fresh` has removed an earlier run."""

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """This process among its peers."""

    rank: int
    size: int
    launch: dist.Store | None = None  # the launcher's, which outlives this attempt; None where it has none

    def has_started_over(self) -> bool:
        """Whether an earlier attempt has removed the run that `--fresh` removes. Where attempts cannot tell each other,
        it is taken for granted: what an attempt has made must not be lost."""
        return attempt() > 0 if self.launch is None else self.launch.check([STARTED_OVER])

    def note_start_over(self) -> None:
        """Tells later attempts, and who reads errors, that the run was removed."""
        errors.note_start_over()
        if self.launch is not None:
            self.launch.set(STARTED_OVER, "")

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, the one that prints and holds the model's checkpoint."""
        return self.rank == 0

    def gather(self, value: T) -> list[T]:
        """Returns the `value` of every rank, in rank order, on every rank. Values are small Python objects."""
        values: list[T | None] = [None] * self.size
        dist.all_gather_object(values, value)
        return values  # type: ignore[return-value]

    def from_main(self, value: T | None) -> T:
        """Returns rank 0's `value` on every rank; what the others pass is ignored."""
        return self.from_rank(value, 0)

    def from_rank(self, value: T | None, source: int) -> T:
        """Returns rank `source`'s `value` on every rank; what the others pass is ignored."""
        box = [value]
        dist.broadcast_object_list(box, src=source)
        return box[0]  # type: ignore[return-value]

    def mean(self, value: float) -> float:
        """Returns the mean over ranks, identical on all of them (summed in fp64)."""
        total = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(total)
        return total.item() / self.size

    def agree(self, work: Callable[[], T]) -> T:
        """Runs `work` on every rank and returns its result; if it fails on any rank, raises the same JobError on all.
        Where this rank can no longer tell the others, it raises its own error.

        Without this a rank that cannot read its data would leave the others waiting in the next collective.
        """
        result, failure = None, None
        try:
            result = work()
        except Exception as error:
            if is_peer_loss(error):
                raise
            failure = error
        try:
            troubles = self.gather(None if failure is None else sentence(failure))
        except Exception:
            if failure is None:
                raise
            raise failure  # noqa: B904  its cause is its own
        if failure is not None:
            show_traceback(failure)
        told = [(rank, text) for rank, text in enumerate(troubles) if text is not None]
        if not told:
            return result  # type: ignore[return-value]
        rank, text = told[0]
        everywhere = len({text for _, text in told}) == 1 and len(told) == self.size
        raise JobError(text if everywhere or rank == 0 else f"rank {rank}: {text}")


def ranks(count: int) -> str:
    """Returns the number of ranks in words: "1 rank", "2 ranks"."""
    return f"{count} rank{'' if count == 1 else 's'}"


def env_number(name: str, default: int | None = None) -> int:
    """Returns the whole number in the environment variable `name`, or `default` where it is not set. Raises
    ValueError."""
    text = os.environ.get(name) or ("" if default is None else str(default))
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"[train.world] {name} must be a whole number, got '{text}'") from None


def launched_outside() -> bool:
    """Whether a launcher (our own, torchrun, …) has already started this process as a rank.

    Raises ValueError where only half of the variables are there.
    """
    names = ("RANK", "WORLD_SIZE")
    there = [name for name in names if os.environ.get(name)]
    if len(there) == 1:
        missing = names[1 - names.index(there[0])]
        raise ValueError(f"[train.world] {there[0]} is set and {missing} is not: set both, or neither")
    return len(there) == 2


def attempt() -> int:
    """Returns how often torchrun has started this job before (`--max-restarts`)."""
    return env_number("TORCHELASTIC_RESTART_COUNT", default=0)


def join(timeout_s: float) -> World:
    """Meets the other ranks over Gloo. A later collective fails after `timeout_s` seconds without an answer.

    Raises ValueError for a rank outside of its world and RuntimeError where the ranks cannot meet.
    """
    rank, size = env_number("RANK"), env_number("WORLD_SIZE")
    if not 0 <= rank < size:
        raise ValueError(f"[train.world] RANK must be between 0 and {size - 1}, got {rank}")
    host, port = os.environ.get("MASTER_ADDR") or "127.0.0.1", env_number("MASTER_PORT", default=29500)
    os.environ.update(MASTER_ADDR=host, MASTER_PORT=str(port))
    timeout, store, launch = timedelta(seconds=timeout_s), None, None
    try:
        if os.environ.get(PARENT_STORE) == "1":
            launch = store = dist.TCPStore(host, port, size, False, timeout)
        elif os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            # torchrun's own store outlives its ranks: those of an attempt must not find the addresses of the one
            # before.
            launch = dist.TCPStore(host, port, size, False, timeout)
            store = dist.PrefixStore(f"attempt {attempt()}", launch)
        # Without a store, the ranks meet in the way of the launcher that set the variables.
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
    except (RuntimeError, ValueError) as error:
        raise RuntimeError(_meeting_trouble(error, host, port)) from error
    return World(rank, size, launch)


def leave() -> None:
    """Ends the process group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _meeting_trouble(error: Exception, host: str, port: int) -> str:
    text = str(error)
    if "EADDRINUSE" in text or "already in use" in text:
        return f"[train.world] port {port} on {host} is in use: choose another MASTER_PORT"
    if "Unable to find address for" in text:
        interface = os.environ.get("GLOO_SOCKET_IFNAME", "")
        return f"[train.world] GLOO_SOCKET_IFNAME={interface} names no network interface with an address here"
    return f"[train.world] the ranks could not meet at {host}:{port}: {sentence(error)}"
