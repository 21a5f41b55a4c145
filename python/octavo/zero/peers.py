# SPDX-License-Identifier: Apache-2.0
"""What an engine agrees on with the other ranks, besides what its C++ engine sends."""

from __future__ import annotations

import pickle
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import TypeVar

import torch.distributed as dist
from torch import Tensor

from octavo.rendezvous import Rendezvous

Value = TypeVar("Value")

_REBUILD = "the process group and the engine must be rebuilt"


class Peers:
    """All ranks of an engine, which call the methods together. The process group has a timeout of its own, often of
    half an hour: here a rank waits no longer than ``timeout_s`` seconds. Raises TimeoutError where a rank stays away,
    RuntimeError where one was lost. Errors begin with ``[where]``. ``fail`` is called with them first: ranks that have
    lost each other once would take one another's next values for those of other calls."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        rendezvous: Rendezvous,
        timeout_s: float,
        fail: Callable[[BaseException], None],
    ):
        self.group, self.rank, self.size = group, group.rank(), group.size()
        self.are_lost = False  # whether a wait for them has ended with an error
        self._rendezvous, self._timeout_s, self._fail = rendezvous, timeout_s, fail

    def values(self, own: Value, where: str) -> list[Value]:
        """Returns the value of every rank, in the order of ranks. Values are pickled, and go through the group's store:
        they should be small."""
        text = b64encode(zlib.compress(pickle.dumps(own))).decode()
        with self._failing(where):
            texts = self._rendezvous.exchange(text, where)
        return [pickle.loads(zlib.decompress(b64decode(text))) for text in texts]

    def all_reduce(self, value: Tensor, by: dist.ReduceOp.RedOpType, where: str) -> None:
        """Reduces a tensor over the ranks, in place."""
        with self._failing(where):
            self._wait(dist.all_reduce(value, by, group=self.group, async_op=True))

    def waiting(self, where: str) -> Callable[[dist.Work], None]:
        """Returns the function that waits for a collective of the group."""
        return partial(self._wait_for, where)

    def _wait_for(self, where: str, work: dist.Work) -> None:
        with self._failing(where):
            self._wait(work)

    def _wait(self, work: dist.Work) -> None:
        work.wait(timedelta(seconds=self._timeout_s))

    @contextmanager
    def _failing(self, where: str) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, TimeoutError) as error:
            self.are_lost = True
            self._fail(error)
            raise self._explained(error, where) from error

    def _explained(self, error: Exception, where: str) -> Exception:
        if isinstance(error, TimeoutError):  # of a rendezvous, which names the rank
            return TimeoutError(f"{error}; {_REBUILD}")
        if "timed out" in str(error).lower():
            late = f"another rank did not answer within {self._timeout_s:g} s"
            return TimeoutError(f"[{where}] rank {self.rank}: {late}; {_REBUILD}")
        return RuntimeError(f"[{where}] another rank was lost ({error}); {_REBUILD}")
