# SPDX-License-Identifier: Apache-2.0
"""What fails on one rank fails on all: none of them is left waiting."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist


def on_all_ranks(work: Callable[[], None], where: str, what: str, group: dist.ProcessGroup) -> None:
    """Does it on this rank, with its errors as those of `where`. On all ranks RuntimeError where one cannot do it, or
    OSError where that was its error."""
    failure: Exception | None = None
    try:
        work()
    except Exception as error:
        failure = error
    require_none_failed(failure, where, what, group)


def by_first_rank(work: Callable[[], None], where: str, what: str, group: dist.ProcessGroup) -> None:
    """The same, where rank 0 alone has something to do and the others wait for it."""
    on_all_ranks(work if group.rank() == 0 else lambda: None, where, what, group)


def require_none_failed(failure: Exception | None, where: str, what: str, group: dist.ProcessGroup) -> None:
    """All ranks call it, each with the error that it has met."""
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
