# SPDX-License-Identifier: Apache-2.0
"""Work that fails on all ranks where it fails on one of them, so that no rank is left waiting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from octavo.zero.peers import Peers

Result = TypeVar("Result")

_KINDS = (OSError, ValueError)  # the kinds of errors that all ranks can tell apart; the others become RuntimeError


def on_all_ranks(work: Callable[[], Result], where: str, what: str, peers: Peers) -> Result:
    """Calls ``work`` on this rank, and returns its result. All ranks call it. Where ``work`` fails on a rank, all ranks
    raise RuntimeError; OSError or ValueError where all failures were of that kind. Errors begin with `[where]`;
    ``what`` is what could not be done. If all ranks fail with the same message, and it begins with a `[place]` of its
    own, they raise it unchanged."""
    failure: Exception | None = None
    try:
        result = work()
    except Exception as error:
        failure = error
    require_none_failed(failure, where, what, peers)
    return result


def by_first_rank(work: Callable[[], None], where: str, what: str, peers: Peers) -> None:
    """Does what ``on_all_ranks`` does, where only rank 0 has work to do and the others wait for it."""
    on_all_ranks(work if peers.rank == 0 else lambda: None, where, what, peers)


def require_none_failed(failure: Exception | None, where: str, what: str, peers: Peers) -> None:
    """Raises on all ranks where a rank has failed. All ranks call it, each with the error that it has met, or None.
    Where this rank can no longer tell the others, it raises its own error."""
    own = None if failure is None else described(failure)
    try:
        of_all = peers.values(own, where)
    except (RuntimeError, TimeoutError) as lost:
        if failure is None:
            raise
        raise failure from lost
    failed = {rank: said for rank, said in enumerate(of_all) if said is not None}
    if not failed:
        return
    if failure is not None and str(failure).startswith("[") and all(said == own for said in of_all):
        raise failure
    raise error_of(failed, where, what) from failure


def described(error: BaseException) -> tuple[type[Exception], str]:
    """Returns the kind of an error, and what it says."""
    kind = next((kind for kind in _KINDS if isinstance(error, kind)), RuntimeError)
    said = str(error)
    text = said if said.startswith("[") else f"{type(error).__name__}: {said}"
    return kind, getattr(error, "strerror", None) or text


def error_of(failed: Mapping[int, tuple[type[Exception], str]], where: str, what: str) -> Exception:
    """Returns the error that all ranks raise. ``failed``: by rank, what ``described`` returns of its error."""
    kinds = {kind for kind, _ in failed.values()}
    kind = kinds.pop() if len(kinds) == 1 else RuntimeError
    words = "; ".join(f"rank {rank} cannot {what}: {text}" for rank, (_, text) in sorted(failed.items()))
    return kind(f"[{where}] {words}")
