# SPDX-License-Identifier: Apache-2.0
"""How the ranks of a process group meet for connections of Octavo's own."""

from datetime import timedelta

import torch.distributed as dist


class Rendezvous:
    """A meeting of all ranks of ``group``, through the group's store; nothing is sent over the group itself.

    Collectives of one group are matched by their order. Octavo's run on threads of its own while DDP and the user's
    code issue others, so that on a shared group the orders would differ by rank. Every rank makes the same number of
    Rendezvous for a ``purpose``; one that a rank did not come to does not count. Every wait ends after ``timeout_s``
    with TimeoutError. It may be made on any thread.
    """

    def __init__(self, group: dist.ProcessGroup, purpose: str, timeout_s: float):
        self._rank, self._size = group.rank(), group.size()
        self._purpose = purpose
        self._rounds = 0
        self._timeout = timedelta(seconds=timeout_s)
        store = group.get_group_store().clone()  # a store blocks its other callers while it waits
        self._counter = store, f"octavo/{purpose}/rank {self._rank}"
        times = store.add(self._counter[1], 1)
        self._store = dist.PrefixStore(f"octavo/{purpose}/{times}", store)

    def exchange(self, text: str) -> list[str]:
        """The ``text`` of every rank, by rank."""
        self._rounds += 1
        keys = [f"{self._rounds}/rank {rank}" for rank in range(self._size)]
        self._store.set(keys[self._rank], text)
        texts = []
        for rank, key in enumerate(keys):
            try:
                self._store.wait([key], self._timeout)
            except RuntimeError as error:
                if "timeout" not in str(error).lower():
                    raise
                self._call_off(keys[self._rank])
                raise TimeoutError(
                    f"[{self._purpose}] rank {rank} did not come within {self._timeout.total_seconds():g} s: "
                    f"call it on all {self._size} ranks of the group"
                ) from error
            texts.append(self._store.get(key).decode())
        return texts

    def _call_off(self, key: str) -> None:
        """Leaves the store as if this rank had not come, so that the next attempt of all ranks has the same number."""
        if self._rounds == 1:
            store, counter = self._counter
            self._store.delete_key(key)
            store.add(counter, -1)

    def connect(self) -> dist.ProcessGroupGloo:
        """A Gloo back end for these ranks, which one thread at a time may use."""
        self.exchange("")  # Gloo's own timeout does not name the missing rank
        store = dist.PrefixStore("gloo", self._store)
        try:
            backend = dist.ProcessGroupGloo(store, self._rank, self._size, timeout=self._timeout)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise RuntimeError(
                f"[{self._purpose}] a rank left while they were connecting ({reason}): call it again on all ranks"
            ) from error
        self.exchange("")  # a rank that is done at once must not leave while another still connects
        return backend
