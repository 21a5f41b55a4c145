# SPDX-License-Identifier: Apache-2.0
"""Work that fails on all ranks where it fails on one of them, so that no rank is left waiting."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist


def on_all_ranks(work: Callable[[], None], where: str, what: str, group: dist.ProcessGroup) -> None:
    """Calls ``work`` on this rank. All ranks call it. Where ``work`` fails on a rank, all ranks raise RuntimeError, or
    OSError where all failures were OSErrors. Errors begin with `[where]`; ``what`` is what could not be done."""
    failure: Exception | None = None
    try:
        work()
    except Exception as error:
        failure = error
    require_none_failed(failure, where, what, group)


def by_first_rank(work: Callable[[], None], where: str, what: str, group: dist.ProcessGroup) -> None:
    """Does what ``on_all_ranks`` does, where only rank 0 has work to do and the others wait for it."""
    on_all_ranks(work if group.rank() == 0 else lambda: None, where, what, group)


def require_none_failed(failure: Exception | None, where: str, what: str, group: dist.ProcessGroup) -> None:
    """Raises on all ranks where a rank has failed. All ranks call it, each with the error that it has met, or None."""
    own = None if failure is None else (isinstance(failure, OSError), _said_by(failure))
    of_all: list[tuple[bool, str] | None] = [None] * group.size()
    dist.all_gather_object(of_all, own, group=group)
    failed = {rank: said for rank, said in enumerate(of_all) if said is not None}
    if failed:
        kind = OSError if all(is_of_system for is_of_system, _ in failed.values()) else RuntimeError
        words = "; ".join(f"rank {rank} cannot {what}: {text}" for rank, (_, text) in failed.items())
        raise kind(f"[{where}] {words}") from failure


def _said_by(error: Exception) -> str:
    return getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
