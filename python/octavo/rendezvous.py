# SPDX-License-Identifier: Apache-2.0
"""The meeting of a process group's ranks, in which they make connections of Octavo's own."""

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from hashlib import sha256
from json import dumps, loads

import torch
import torch.distributed as dist
from torch import Tensor

_POLL_S = 0.005
_YEAR_S = 366 * 86400.0
_HERE, _LEFT, _END = "here", "left", "end"


def as_group(group: dist.ProcessGroup | None, where: str, argument: str = "group") -> dist.ProcessGroup:
    """Returns ``group``, or for None the group of all ranks. Raises TypeError for what is no process group, ValueError
    where there is none yet or where this process is not in it. ``argument``: the name that errors use."""
    group = group if group is not None else dist.group.WORLD
    if group is None:
        raise ValueError(f"[{where}] there is no process group: call init_process_group() first")
    _require_member(group, where)
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(f"[{where}] expected {argument} as a process group, such as new_group() returns, got {group!r}")
    return group


def require_backend(group: dist.ProcessGroup, device: torch.device, where: str) -> None:
    """Raises ValueError where ``group`` cannot send tensors of ``device``."""
    try:
        group._get_backend(device)
    except RuntimeError as error:
        raise ValueError(
            f"[{where}] the process group has no back end for tensors on {device.type}: name one in "
            f"init_process_group(), as octavo.sycl.COLLECTIVES does for sycl and 'cpu:gloo,cuda:nccl' for cuda"
        ) from error


def _require_member(group: dist.ProcessGroup, where: str) -> None:
    if group == dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(f"[{where}] this process is not in the group: call it only on the group's ranks")


def require_timeout(timeout_s: float, where: str) -> None:
    """Raises ValueError unless ``timeout_s`` is a number of seconds, of at least a millisecond and at most a year, as
    c10d can count them."""
    if not (isinstance(timeout_s, int | float) and 0.001 <= timeout_s <= _YEAR_S):
        raise ValueError(
            f"[{where}] timeout_s must be a number of seconds, of at least 0.001 and at most a year, got {timeout_s!r}"
        )


_cloning = threading.Lock()


def clone_of(store: dist.Store, purpose: str, timeout: timedelta) -> dist.Store:
    """Returns a new connection to the store. While one call waits, calls of other threads on the same connection wait,
    too. Raises TimeoutError where whoever serves the store does not answer; torch would try for the time that the
    process group was given."""
    with _cloning:  # another thread would take the time that is set here for the store's own
        before = store.timeout
        store.set_timeout(min(before, max(timeout, timedelta(seconds=1))))  # torch takes whole seconds
        try:
            clone = store.clone()
        except RuntimeError as error:
            raise TimeoutError(
                f"[{purpose}] the store of the process group did not answer within {timeout.total_seconds():g} s: the "
                f"process that serves it, rank 0 or torchrun's agent, has ended or cannot be reached"
            ) from error
        finally:
            store.set_timeout(before)
    clone.set_timeout(before)
    return clone


class Rendezvous:
    """A meeting of all ranks of ``group``, through the group's store; nothing is sent over the group itself.

    The ranks of a group match its collectives by their order. Octavo's collectives run on threads of their own while
    DDP and the user's code issue others: on a shared group the order would differ from rank to rank. Every wait ends
    after ``timeout_s`` seconds with TimeoutError. A rendezvous may be made on any thread, but for each ``group`` and
    ``purpose`` by one thread at a time.

    Rank 0 numbers the attempts to meet, and the others follow its number: whatever each rank saw of an attempt that
    failed, all of them are together in the next one.
    """

    def __init__(self, group: dist.ProcessGroup, purpose: str, timeout_s: float):
        """Raises ValueError where this process is not in ``group``, or where ``timeout_s`` is no number of seconds
        above 0, TimeoutError where the group's store does not answer."""
        _require_member(group, purpose)
        require_timeout(timeout_s, purpose)
        self._rank, self._size = group.rank(), group.size()
        self._purpose, self._timeout = purpose, timedelta(seconds=timeout_s)
        self._store = dist.PrefixStore(f"octavo/{purpose}", clone_of(group.get_group_store(), purpose, self._timeout))
        self._attempt: dist.Store | None = None
        self._meetings = 0

    def exchange(self, text: str, where: str | None = None) -> list[str]:
        """Returns the ``text`` of every rank, in the order of ranks. ``where``: what errors name in the place of the
        purpose. Where a rank does not come in time, all ranks raise TimeoutError, which names it. The late rank raises
        it when it comes, too: it must not go on alone."""
        if self._attempt is None:
            self._attempt = self._meet()
        self._meetings += 1
        meeting = self._meeting(self._meetings)
        meeting.set(str(self._rank), text)
        if meeting.add("count", 1) == self._size:
            _decide(meeting, _HERE)
        end = self._end_of(meeting)
        if end != _HERE:
            raise self._timed_out(int(end), where)
        texts = [meeting.get(str(rank)).decode() for rank in range(self._size)]
        self._forget(self._meetings - 1)
        return texts

    def connect(self, ranks: Sequence[int] | None = None) -> dist.ProcessGroupGloo:
        """Returns a Gloo back end for all ranks, which one thread at a time may use. With ``ranks`` it connects only
        those, in that order: each rank then names a set of ranks to which it belongs, and all ranks of a set name the
        same one."""
        ranks = ranks if ranks is not None else range(self._size)
        self.exchange("")  # Gloo's own timeout does not name the missing rank
        store = dist.PrefixStore(f"gloo {self._meetings} from rank {ranks[0]}", self._attempt)
        try:
            backend = dist.ProcessGroupGloo(store, ranks.index(self._rank), len(ranks), timeout=self._timeout)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise RuntimeError(
                f"[{self._purpose}] a rank left while they were connecting ({reason}): call it again on all ranks"
            ) from error
        self.exchange("")  # a rank that is ready must not leave while another one still connects
        return backend

    def _meet(self) -> dist.Store:
        """Waits until all ranks are here, and returns the store of this attempt."""
        deadline = time.monotonic() + self._timeout.total_seconds()
        number = self._lead(deadline) if self._rank == 0 else self._follow(deadline)
        self._store.set(f"last of rank {self._rank}", str(number))
        return self._attempt_store(number)

    def _lead(self, deadline: float) -> int:
        number = self._store.add("attempts", 1)
        attempt, keys = self._attempt_store(number), self._keys()
        attempt.set(keys[0], _HERE)
        self._store.set("open", str(number))
        while not (attempt.check(keys) and all(attempt.get(key).decode() == _HERE for key in keys)):
            if time.monotonic() > deadline:
                self._store.set("open", "0")
                raise self._timed_out(self._absent(attempt))
            time.sleep(_POLL_S)
        attempt.set("all are here", "")
        return number

    def _follow(self, deadline: float) -> int:
        last, joined = self._number(f"last of rank {self._rank}"), 0
        while not (joined and self._attempt_store(joined).check(["all are here"])):
            number = self._number("open")
            if number > last and number != joined:
                joined = number
                self._attempt_store(joined).set(self._keys()[self._rank], _HERE)
            elif time.monotonic() > deadline:
                raise self._timed_out(self._leave(joined))
            else:
                time.sleep(_POLL_S)
        return joined

    def _leave(self, joined: int) -> int:
        """Takes this rank out of the attempt that it joined, and returns the number of a rank that did not join the
        attempt."""
        if joined == 0:
            return 0
        attempt = self._attempt_store(joined)
        absent = self._absent(attempt)
        attempt.set(self._keys()[self._rank], _LEFT)
        return absent

    def _absent(self, attempt: dist.Store) -> int:
        """Returns the first rank that did not come to the attempt; otherwise one that has left it; otherwise 0, which
        leads it."""
        keys = self._keys()
        missing = [rank for rank, key in enumerate(keys) if not attempt.check([key])]
        if missing:
            return missing[0]
        return next((rank for rank, key in enumerate(keys) if attempt.get(key).decode() == _LEFT), 0)

    def _attempt_store(self, number: int) -> dist.Store:
        return dist.PrefixStore(f"attempt {number}", self._store)

    def _number(self, key: str) -> int:
        return int(self._store.get(key)) if self._store.check([key]) else 0

    def _keys(self) -> list[str]:
        return [f"rank {rank}" for rank in range(self._size)]

    def _meeting(self, number: int) -> dist.Store:
        return dist.PrefixStore(f"meeting {number}", self._attempt)

    def _end_of(self, meeting: dist.Store) -> str:
        """Waits for the end of a meeting, and returns _HERE, or the number of a rank that has not come in time. The
        first rank to know decides it for all."""
        try:
            if not meeting.check([_END]):
                meeting.wait([_END], self._timeout)
        except RuntimeError as error:
            if "timeout" not in str(error).lower():
                raise
            absent = (str(rank) for rank in range(self._size) if not meeting.check([str(rank)]))
            _decide(meeting, next(absent, _HERE))
        return meeting.get(_END).decode()

    def _forget(self, number: int) -> None:
        """Deletes what this rank has said in a meeting. Whoever has come to the next one has read it."""
        if number == 0:
            return
        of_all = ["count", _END] if self._rank == 0 else []
        for key in [str(self._rank), *of_all]:
            self._meeting(number).delete_key(key)

    def _timed_out(self, rank: int, where: str | None = None) -> TimeoutError:
        return TimeoutError(
            f"[{where or self._purpose}] rank {rank} did not come within {self._timeout.total_seconds():g} s: "
            f"call it on all {self._size} ranks of the group"
        )


def _decide(meeting: dist.Store, end: str) -> None:
    """Records `end` as the result of the meeting, unless another rank has recorded one. Ranks that wait for it are
    woken by set(): compare_set() does not wake them in a TCPStore without libuv (seen in torch 2.13)."""
    meeting.set(_END, meeting.compare_set(_END, "", end))


Difference = tuple[str, str]
"""Which value differs between ranks, and a clause that says so."""


def require_same_on_all_ranks(rendezvous: Rendezvous, our_rank: int, ours: Mapping[str, object], where: str) -> None:
    """Raises ValueError on all ranks where one of the values in ``ours`` differs between ranks. Such ranks would read
    each other's bytes wrongly, or wait forever."""
    refuse_difference(difference_between_ranks(rendezvous, ours), our_rank, ours, where)


def difference_between_ranks(
    rendezvous: Rendezvous,
    ours: Mapping[str, object],
    ranks: Sequence[int] | None = None,
    found: Difference | None = None,
) -> Difference | None:
    """Returns the first value in ``ours`` that differs between ranks, or None; all ranks of the rendezvous return the
    same. ``ranks``: their numbers in the clause. ``found``: what this rank has been told in the rendezvous of another
    group; the ranks of this one learn of it here."""
    digests = {what: sha256(repr(value).encode()).hexdigest() for what, value in ours.items()}
    of_all = [loads(text) for text in rendezvous.exchange(dumps([digests, found]))]
    for _, theirs in of_all:
        if theirs is not None:
            return theirs[0], theirs[1]
    numbers = range(len(of_all)) if ranks is None else ranks
    first = of_all[0][0]
    for number, (theirs, _) in zip(numbers, of_all, strict=True):
        for what, digest in theirs.items():
            if digest != first[what]:
                return what, f"all ranks must have the same {what}; rank {number} differs from rank {numbers[0]}"
    return None


def refuse_difference(difference: Difference | None, our_rank: int, ours: Mapping[str, object], where: str) -> None:
    """Raises ValueError unless ``difference`` is None."""
    if difference is not None:
        what, clause = difference
        raise ValueError(f"[{where}] {clause} (here, rank {our_rank}: {_short(ours[what])})")


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 100 else text[:97] + "..."


@torch.no_grad()
def broadcast_from_rank_0(tensors: Iterable[Tensor], group: dist.ProcessGroup) -> None:
    """Replaces the tensors by those of rank 0, in place. They are sent as bytes, because Gloo does not send every
    dtype."""
    source = dist.get_global_rank(group, 0)
    for tensor in tensors:
        ours = tensor.detach()
        # a single element may have any stride, and the values of a lazy view are not what its memory has
        lies_apart = not ours.is_contiguous() or ours.numel() == 1 or ours.is_conj() or ours.is_neg()
        sent = ours.new_empty(ours.shape).copy_(ours) if lies_apart else ours
        dist.broadcast(sent.view(-1).view(torch.uint8), source, group=group)
        if lies_apart:
            ours.copy_(sent)
