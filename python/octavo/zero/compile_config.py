# SPDX-License-Identifier: Apache-2.0
"""The options of ZeRO for ``torch.compile``. They have a file of their own, because importing ``zero.compiled`` takes
seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from octavo.arguments import is_finite_number, require, require_known

if TYPE_CHECKING:
    from octavo.zero.compiled.passes import Schedule

BACKENDS = ("inductor", "aot_eager")


def require_option(condition: bool, expected: str, got: object) -> None:
    """Raises ValueError, in the name of ``octavo.initialize``, unless the condition is met."""
    require(condition, "zero.initialize", expected, repr(got))


@dataclass(frozen=True)
class CompileConfig:
    """The fields that ``compile`` in the config of ``octavo.initialize`` may have.

    - ``backend``: "inductor" generates code, "aot_eager" runs aten's operators.
    - ``schedule``: pairs of a step and the passes that make the graphs from that step on; None: the schedule of the
      stage (``default_schedule``).
    - ``memory_mib``: how much of the device's memory a rank may use, in MiB. None: passes do not raise the peak that
      was measured in a step, and send to the host all that they can. A step that is measured resets the device's peak
      statistics.
    - ``dynamic``: as in ``torch.compile``.

    Raises ValueError for a value that makes no sense.
    """

    backend: str = "inductor"
    schedule: Schedule | None = None
    memory_mib: float | None = None
    dynamic: bool | None = None

    def __post_init__(self) -> None:
        require_option(self.backend in BACKENDS, f"compile's backend to be one of {BACKENDS}", self.backend)
        is_size = self.memory_mib is None or (is_finite_number(self.memory_mib) and self.memory_mib > 0)
        require_option(is_size, "a memory_mib above 0", self.memory_mib)
        require_option(isinstance(self.dynamic, bool | None), "dynamic to be True, False or None", self.dynamic)


def compile_config(value: bool | str | Mapping[str, Any]) -> CompileConfig | None:
    """Returns the config of the value of ``compile``: False (None is returned), True, the name of a backend, or the
    fields of a ``CompileConfig``. Raises ValueError for anything else."""
    if isinstance(value, bool):
        return CompileConfig() if value else None
    require_option(isinstance(value, str | Mapping), "compile to be True, False, a backend's name or a dict", value)
    options = {"backend": value} if isinstance(value, str) else dict(value)
    require_known(options, [field.name for field in fields(CompileConfig)], "compile", "zero.initialize")
    return CompileConfig(**options)
