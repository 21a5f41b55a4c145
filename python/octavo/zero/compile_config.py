# SPDX-License-Identifier: Apache-2.0
"""What the user of ZeRO chooses of ``torch.compile``. Apart from what compiles, whose imports take seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.zero.compiled.passes import Schedule

BACKENDS = ("inductor", "aot_eager")


@dataclass(frozen=True)
class CompileConfig:
    """``backend``: "inductor" generates code, "aot_eager" runs aten's operators. ``schedule``: from which step on which
    passes make the graphs; None: the stage's own (``default_schedule``). ``memory_mib``: of the device that a rank may
    use; None: passes do not raise the peak that a step was measured to have, and send to the host all that they can. A
    step that is measured resets the device's peak statistics. ``dynamic``: as of ``torch.compile``."""

    backend: str = "inductor"
    schedule: Schedule | None = None
    memory_mib: float | None = None
    dynamic: bool | None = None

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise ValueError(
                f"[zero.initialize] expected compile's backend to be one of {BACKENDS}, got {self.backend!r}"
            )
        if self.memory_mib is not None and self.memory_mib <= 0:
            raise ValueError(f"[zero.initialize] expected a memory_mib above 0, got {self.memory_mib}")


def compile_config(value: bool | str | Mapping[str, Any]) -> CompileConfig | None:
    """Of ``octavo.initialize``: False; True; the name of a backend; or the fields of a ``CompileConfig``."""
    if isinstance(value, bool):
        return CompileConfig() if value else None
    if not isinstance(value, str | Mapping):
        raise ValueError(
            f"[zero.initialize] expected compile to be True, False, a backend's name or a dict, got {value!r}"
        )
    options = {"backend": value} if isinstance(value, str) else dict(value)
    known = [field.name for field in fields(CompileConfig)]
    if strangers := options.keys() - set(known):
        raise ValueError(
            f"[zero.initialize] compile has no {', '.join(sorted(strangers))}; known are {', '.join(known)}"
        )
    return CompileConfig(**options)
