# SPDX-License-Identifier: Apache-2.0
"""Stage 3 without ``torch.compile``: the memory of whole parameters."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress

from torch import nn

from octavo import _C

GRAPH = 0  # without torch.compile all parameters belong to one graph


class WholeParameters:
    """The memory of whole parameters, which has no bytes while they are not whole. When it is filled again, views of it
    that autograd has saved are valid again. Parameters are numbers here: their places in ``parameters``.

    ``there`` are those that are whole or being gathered, ``bytes`` has the size of each.
    """

    def __init__(self, engine: _C.Engine, parameters: Mapping[str, nn.Parameter]):
        self._engine = engine
        self._names = list(parameters)
        self._wholes = [p.data for p in parameters.values()]  # without their counts of changes, which autograd compares
        self._storages = [whole.untyped_storage() for whole in self._wholes]
        self._id_of_storage = {storage._cdata: id for id, storage in enumerate(self._storages)}
        self._unresizable: set[int] = set()  # what numpy shares
        self._refusals = [
            f"[zero.gathering] {name} is not whole on rank {engine.compressor.rank} outside of its module's forward "
            f"and backward: read it in engine.gathered(), or call the module that has it"
            for name in self._names
        ]
        self.bytes = [storage.nbytes() for storage in self._storages]
        self.there = {id for id, count in enumerate(self.bytes) if count == 0}
        self._moving: set[int] = set()
        for id in range(len(self._wholes)):
            self._empty(id)

    @property
    def moving(self) -> list[int]:
        """The parameters that are being gathered."""
        return list(self._moving)

    def with_memory(self, memory: int | None) -> int | None:
        """Returns the parameter that has this memory (module_hooks.memory_of); None where there is none."""
        return self._id_of_storage.get(memory)

    def gather(self, ids: Iterable[int]) -> None:
        """Gathers these parameters, and returns when they are whole."""
        needed = list(ids)
        self.start(needed)
        for id in needed:
            if id in self._moving:
                self._engine.wait_allgather(GRAPH, id)
                self._moving.discard(id)

    def start(self, ids: Iterable[int]) -> None:
        """Starts one transfer of those parameters that are neither whole nor being gathered."""
        needed = [id for id in ids if id not in self.there]
        if not needed:
            return
        has_memory = False
        try:
            for id in needed:
                _C.allow_access(self._wholes[id])
                if id not in self._unresizable:
                    self._storages[id].resize_(self.bytes[id])
            has_memory = True
            self._engine.gather_into(GRAPH, needed, [self._wholes[id] for id in needed])
        except BaseException:  # where there is no memory, what has not arrived may be gathered again
            for id in needed:
                if has_memory and self._engine.has_valid_values(id):
                    self.there.add(id)
                    continue
                with suppress(ValueError):  # of one whose transfer was lost on its way, and may still write to it
                    self._engine.give_back(id)
                    self._empty(id)
            raise
        self.there.update(needed)
        self._moving.update(needed)

    def release(self, id: int) -> None:
        """Gives up the memory of a parameter. Does nothing where it has none, and waits where it is being gathered."""
        if id not in self.there or self.bytes[id] == 0:
            return
        self.gather([id])  # it may be under way for a module that did not come
        self._engine.give_back(id)
        self._empty(id)
        self.there.discard(id)

    def _empty(self, id: int) -> None:
        if self.bytes[id] == 0:
            return
        if self._storages[id].resizable():
            self._storages[id].resize_(0)
        elif id not in self._unresizable:
            self._unresizable.add(id)
            warnings.warn(
                f"[zero.gathering] {self._names[id]} keeps the memory of all of its elements from now on, because "
                f"numpy() has given it to an array: call .clone().numpy()",
                stacklevel=8,
            )
        _C.forbid_access(self._wholes[id], self._refusals[id])
