# SPDX-License-Identifier: Apache-2.0
"""How much of a device's memory passes may use, and what they have sent to the host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass
class Memory:
    """The memory of the device, for all graphs of a model.

    - ``spare_bytes``: bytes that passes may use beyond what a measured step has used. Each pass subtracts what it
      takes.
    - ``min_offload_bytes``: saved values of fewer bytes are not offloaded.
    - ``persistent``: the ids of parameters that stay whole from their first use to the end of a step.
    - ``persistent_bytes``: what was taken of ``spare_bytes`` for them.
    - ``staying``: the saved values that are not offloaded, by graph and number.
    - ``states``: by parameter, the bytes that the optimizer keeps of it.
    - ``shards``: by parameter, the bytes of a rank's part that are apart from the values that graphs compute with.
    - ``copy_s_per_byte``: the seconds per byte of a copy from the host to the device.
    - ``limit_bytes``: bytes that a rank may use; None: as few as passes can make it.
    - ``peak_bytes``: the peak of the measured step's graphs, as if nothing were on the host.
    - ``sent``: the bytes that are sent to the host, by kind and parameter.
    """

    spare_bytes: int = 0
    min_offload_bytes: int = 2**20
    persistent: set[int] = field(default_factory=set)
    persistent_bytes: int = 0
    staying: set[tuple[int, int]] = field(default_factory=set)
    states: Mapping[int, int] = field(default_factory=dict)
    shards: Mapping[int, int] = field(default_factory=dict)
    copy_s_per_byte: float = 0.0
    limit_bytes: int | None = None
    peak_bytes: int = 0
    sent: dict[str, dict[int, int]] = field(default_factory=dict)

    def keep(self, ids: Iterable[int], part_bytes: int) -> None:
        """Makes parameters persistent, for which ``part_bytes`` more of memory are taken."""
        self.spare_bytes -= part_bytes
        self.persistent_bytes += part_bytes
        self.persistent.update(ids)

    def take_back_persistent(self) -> None:
        """Lets no parameter be persistent, so that passes choose anew."""
        self.spare_bytes += self.persistent_bytes
        self.persistent_bytes = 0
        self.persistent.clear()

    def send(self, kind: str, sizes: Mapping[int, int]) -> dict[int, int]:
        """Chooses which of the values with these ``sizes``, bytes by parameter, are sent to the host. Without a limit
        these are all; otherwise as few bytes as the limit is exceeded by. The choice is the same for all graphs until a
        step is measured again."""
        if kind not in self.sent:
            of_others = sum(sum(sizes.values()) for sizes in self.sent.values())
            missing = None if self.limit_bytes is None else self.peak_bytes - of_others - self.limit_bytes
            self.sent[kind] = _enough(sizes, missing)
        return self.sent[kind]

    def allowed_bytes(self, sent: Mapping[int, int]) -> int:
        """Returns how many bytes may be allocated while all of ``sent`` is on the host."""
        return self.peak_bytes - sum(sent.values()) if self.limit_bytes is None else self.limit_bytes


def _enough(sizes: Mapping[int, int], missing: int | None) -> dict[int, int]:
    """Returns some of ``sizes`` whose sum is at least ``missing``: the largest ones, and as the last one the smallest
    that is enough. Returns all where ``missing`` is None."""
    if missing is None:
        return dict(sizes)
    left = sorted(sizes.items(), key=lambda item: item[1])
    taken: dict[int, int] = {}
    while missing > 0 and left:
        last = next((item for item in left if item[1] >= missing), left[-1])
        left.remove(last)
        taken[last[0]] = last[1]
        missing -= last[1]
    return taken
