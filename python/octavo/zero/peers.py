# SPDX-License-Identifier: Apache-2.0
"""What an engine agrees on with the other ranks, besides what its C++ engine sends."""

from __future__ import annotations

import pickle
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from octavo import _C
from octavo.rendezvous import Rendezvous

Value = TypeVar("Value")

_REBUILD = "the engine must be rebuilt"


class Peers:
    """All ranks of an engine, which call the methods together. Each wait of a method ends within ``timeout_s`` seconds:
    methods send nothing over the process group, whose own timeout is often half an hour. Raises TimeoutError where a
    rank stays away, RuntimeError where one was lost; errors begin with ``[where]``. Before an error is raised,
    ``fail(error)`` ends the engine: after a lost message, a rank would take another rank's next value for the answer to
    an earlier call.

    Code that sends over ``group`` may wait until the group's own timeout. It calls ``values`` directly before, so that
    a missing rank is named in time.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        rendezvous: Rendezvous,
        timeout_s: float,
        fail: Callable[[BaseException], None],
    ):
        self.group, self.rank, self.size = group, group.rank(), group.size()
        self.are_lost = False  # whether a wait for them has ended with an error
        self._rendezvous, self._fail = rendezvous, fail
        self._wire = _C.Wire(rendezvous.connect(), timeout_s)

    def values(self, own: Value, where: str) -> list[Value]:
        """Returns the value of every rank, in the order of ranks. Values are pickled, and go through the group's store:
        they should be small."""
        text = b64encode(zlib.compress(pickle.dumps(own))).decode()
        with self._failing(where):
            texts = self._rendezvous.exchange(text, where)
        return [pickle.loads(zlib.decompress(b64decode(text))) for text in texts]

    def sum(self, number: Tensor, where: str) -> Tensor:
        """Returns the sum of the ranks' numbers, on the device of ``number``, a tensor of one element."""
        total = number.to("cpu", copy=True)
        with self._failing(where):
            self._wire.all_reduce(total)
        return total.to(number.device)

    def concatenation(self, own: Tensor, counts: list[int], of: str, where: str) -> Tensor:
        """Returns the elements of all ranks, one rank's after another's, on the device of ``own``, which is flat.
        ``counts``: how many elements each rank has. ``of``: the name of what they are. They are sent through the host's
        memory. Raises RuntimeError where ranks gather something else."""
        with self._failing(where):
            gathered = self._wire.all_gather(
                own.detach().cpu().contiguous().view(torch.uint8),
                [count * own.itemsize for count in counts],
                of,
                where,
            )
        return gathered.view(own.dtype).to(own.device)

    @contextmanager
    def _failing(self, where: str) -> Iterator[None]:
        if self.are_lost:
            raise RuntimeError(f"[{where}] an earlier wait for other ranks failed: {_REBUILD}")
        try:
            yield
        except (RuntimeError, TimeoutError) as error:
            self.are_lost = True
            self._fail(error)
            kind = TimeoutError if isinstance(error, TimeoutError) else RuntimeError
            raise kind(_explained(str(error), where)) from error


def _explained(said: str, where: str) -> str:
    if said.startswith("[comm.wire] "):  # which says what to rebuild
        return f"[{where}] {said.removeprefix('[comm.wire] ')}"
    if not said.startswith(f"[{where}]"):  # of the store; a rendezvous names the place and the rank
        said = f"[{where}] another rank was lost ({said})"
    return f"{said}; {_REBUILD}"
