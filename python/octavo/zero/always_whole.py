# SPDX-License-Identifier: Apache-2.0
"""Parameters that are whole at any time."""

from __future__ import annotations

from octavo import _C


class AlwaysWhole:
    """What takes the place of ``Gathering`` in stages 1 and 2: there is nothing to gather or to release."""

    def __init__(self, engine: _C.Engine):
        self._engine = engine

    def gather_all(self) -> None:
        pass

    def leave_all(self) -> None:
        pass

    def release_after_gradient(self, id: int) -> None:
        pass

    def release_all(self) -> None:
        pass

    def end_pass(self) -> None:
        pass

    def renew_all(self) -> None:
        """Gives all ranks what the owners of the parameters' parts have."""
        self._engine.gather_updated()
