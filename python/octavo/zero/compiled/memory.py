# SPDX-License-Identifier: Apache-2.0
"""What passes may use of a device, and what they have sent to the host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Memory:
    """Of the device, for all graphs of a model: what passes may use beyond what a measured step has used, which each
    pass lessens by what it takes. ``persistent``: parameters that stay whole from their first use to the end of a step.
    ``staying``: saved values, by graph and number, that are not offloaded; those of fewer than ``min_offload_bytes``
    never are. ``states`` and ``shards``: bytes that the optimizer keeps of each parameter, and that a rank has of its
    values apart from those that graphs compute with. ``copy_s_per_byte``: from the host to the device.
    ``limit_bytes``: that a rank may use; None: as few as passes can make it. ``peak_bytes``: of the measured step's
    graphs, as if nothing waited on the host. ``sent``: what waits there, by kind and parameter."""

    spare_bytes: int = 0
    min_offload_bytes: int = 2**20
    persistent: set[int] = field(default_factory=set)
    staying: set[tuple[int, int]] = field(default_factory=set)
    states: Mapping[int, int] = field(default_factory=dict)
    shards: Mapping[int, int] = field(default_factory=dict)
    copy_s_per_byte: float = 0.0
    limit_bytes: int | None = None
    peak_bytes: int = 0
    sent: dict[str, dict[int, int]] = field(default_factory=dict)

    def send(self, kind: str, sizes: Mapping[int, int]) -> dict[int, int]:
        """Which of several, by parameter and bytes, are to wait on the host: all where there is no limit, otherwise as
        few bytes as it is exceeded by. The same for all graphs until a step is measured again."""
        if kind not in self.sent:
            of_others = sum(sum(sizes.values()) for sizes in self.sent.values())
            missing = None if self.limit_bytes is None else self.peak_bytes - of_others - self.limit_bytes
            self.sent[kind] = _enough(sizes, missing)
        return self.sent[kind]

    def allowed_bytes(self, sent: Mapping[int, int]) -> int:
        """That may be allocated while all of ``sent`` is away."""
        return self.peak_bytes - sum(sent.values()) if self.limit_bytes is None else self.limit_bytes


def _enough(sizes: Mapping[int, int], missing: int | None) -> dict[int, int]:
    """Some whose sum is at least ``missing``: the largest ones, and at last the smallest that suffices."""
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
