# SPDX-License-Identifier: Apache-2.0
"""The options of ZeRO."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from os import PathLike
from typing import Any

from octavo._C import Plan, StatePaging
from octavo.arguments import is_finite_number, is_whole_number, paging_of, require_known, require_seed
from octavo.parameters import Exempt
from octavo.plan import as_plan
from octavo.zero.compile_config import compile_config, require_option


@dataclass(frozen=True)
class ZeroConfig:
    """The fields that the config of ``octavo.initialize`` may have; ``zero_stage`` must be given.

    - ``zero_stage``: 1 shares out the optimizer's state, 2 gradients too, 3 parameters too.
    - ``plan``: how gradients are sent to the ranks that own their parts.
    - ``gather``: the codec by which parameters are sent to all ranks; None: as they are. With a codec, also with
      ``dense``, a rank's part of a parameter has memory of its own, apart from the whole parameter.
    - ``accumulation_steps``: the number of micro-batches in a step.
    - ``clip_norm``: the greatest norm of all gradients together; None: they are not clipped.
    - ``bucket_mib``: the size of a bucket of gradients that are sent together, in MiB.
    - ``gather_mib``: the size of the parameters that are sent together, in MiB.
    - ``reuse_mib``: in stage 3, in MiB: a parameter stays whole where it is used again before other parameters of this
      size are needed.
    - ``exempt``: the parameters whose gradients are sent in float32, as in ``octavo.compress``.
    - ``compile``: True, the name of a backend, or a mapping with the fields of ``octavo.zero.compiled.CompileConfig``,
      for ``torch.compile``, whose graphs then gather parameters and reduce gradients; False: no compilation.
    - ``seed``: the seed of what the plan draws at random.
    - ``timeout_s``: how long a rank waits for the others, in seconds.
    - ``symmetric_memory``: whether ranks exchange data through memory that they share, with the same bits. None: where
      all ranks are on one host. True: the same, with a warning where it is not possible. False: they use the network.
    - ``is_paged`` and ``page_dir``: where what the plan remembers from step to step is kept, as in ``octavo.compress``;
      ranks may differ in them.

    Raises ValueError for a value that makes no sense; TypeError for a ``page_dir`` that is no path.
    """

    zero_stage: int
    plan: str | Plan = "dense"
    gather: str | Plan | None = None
    accumulation_steps: int = 1
    clip_norm: float | None = None
    bucket_mib: float = 25.0
    gather_mib: float = 4.0
    reuse_mib: float = 64.0
    exempt: Exempt = None
    compile: bool | str | Mapping[str, Any] = False
    seed: int = 0
    timeout_s: float = 300.0
    symmetric_memory: bool | None = None
    is_paged: bool = False
    page_dir: str | PathLike | None = None

    def __post_init__(self) -> None:
        for name in ("clip_norm", "bucket_mib", "gather_mib", "reuse_mib", "timeout_s"):
            value = getattr(self, name)
            is_left_out = name == "clip_norm" and value is None
            require_option(is_left_out or is_finite_number(value), f"{name} as a finite number", value)
        is_stage = type(self.zero_stage) is int and self.zero_stage in (1, 2, 3)
        require_option(is_stage, "zero_stage as 1, 2 or 3", self.zero_stage)
        is_whole = is_whole_number(self.accumulation_steps) and self.accumulation_steps >= 1
        require_option(is_whole, "accumulation_steps as an integer of at least 1", self.accumulation_steps)
        require_option(self.clip_norm is None or self.clip_norm > 0, "a clip_norm above 0", self.clip_norm)
        require_option(self.bucket_mib > 0, "a bucket_mib above 0", self.bucket_mib)
        require_option(self.gather_mib > 0, "a gather_mib above 0", self.gather_mib)
        require_option(self.reuse_mib >= 0, "a reuse_mib of at least 0", self.reuse_mib)
        require_seed(self.seed, "zero.initialize")
        try:
            as_plan("dense" if self.gather is None else self.gather)
        except (TypeError, ValueError) as error:
            raise type(error)(
                f"[zero.initialize] gather must be a plan of one codec of a fixed size: {error}"
            ) from error
        is_choice = isinstance(self.symmetric_memory, bool | None)
        require_option(is_choice, "symmetric_memory as True, False or None", self.symmetric_memory)
        self.paging()  # raises for options that make no sense

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> ZeroConfig:
        """Makes a config of a mapping. Raises ValueError for a key that is no field, and where ``zero_stage`` is
        missing; TypeError for anything else than a mapping."""
        if not isinstance(config, Mapping):
            raise TypeError(f"[zero.initialize] expected the config as a mapping, got {type(config).__name__}")
        require_known(config, sorted(field.name for field in fields(cls)), "the config", "zero.initialize")
        if "zero_stage" not in config:
            raise ValueError("[zero.initialize] the config needs a zero_stage: 1, 2 or 3")
        return cls(**config)

    def paging(self) -> StatePaging:
        """Returns ``is_paged`` and ``page_dir`` as the C++ engine takes them."""
        return paging_of(self.is_paged, self.page_dir, "zero.initialize")

    @property
    def has_parts_apart(self) -> bool:
        """Whether a rank's part of a parameter has memory of its own, apart from the whole parameter."""
        return self.zero_stage == 3 or self.gather is not None

    def shared(self) -> dict[str, Any]:
        """Returns the fields that must be equal on all ranks. ``exempt`` is not among them, because it may be a
        function."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        for own in ("exempt", "timeout_s", "is_paged", "page_dir"):
            del values[own]
        values |= {"plan": str(as_plan(self.plan)), "compile": str(compile_config(self.compile))}
        return values | {"gather": None if self.gather is None else str(as_plan(self.gather))}
