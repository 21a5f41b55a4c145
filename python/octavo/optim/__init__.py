# SPDX-License-Identifier: Apache-2.0
"""Optimizers: drop-in subclasses of ``torch.optim.Optimizer`` whose arithmetic is in C++.

``help(octavo.optim.fused.FusedOptimizer)`` explains the options that all classes of Adam, AdamW and Lion share.
"""

from octavo.optim.adam import (
    Adam,
    Adam4bit,
    Adam8bit,
    Adam32bit,
    AdamW,
    AdamW4bit,
    AdamW8bit,
    AdamW32bit,
    PagedAdam,
    PagedAdam8bit,
    PagedAdam32bit,
    PagedAdamW,
    PagedAdamW8bit,
    PagedAdamW32bit,
)
from octavo.optim.convert import from_bitsandbytes, to_bitsandbytes, to_torch
from octavo.optim.lion import (
    DistributedLion,
    Lion,
    Lion8bit,
    Lion32bit,
    PagedLion,
    PagedLion8bit,
    PagedLion32bit,
    Signum,
)
from octavo.optim.onebit_adamw import OneBitAdamW
from octavo.optim.onebit_lamb import OneBitLamb
from octavo.optim.zero_one_adam import ZeroOneAdam

__all__ = [
    "Adam",
    "Adam4bit",
    "Adam8bit",
    "Adam32bit",
    "AdamW",
    "AdamW4bit",
    "AdamW8bit",
    "AdamW32bit",
    "DistributedLion",
    "Lion",
    "Lion8bit",
    "Lion32bit",
    "OneBitAdamW",
    "OneBitLamb",
    "PagedAdam",
    "PagedAdam8bit",
    "PagedAdam32bit",
    "PagedAdamW",
    "PagedAdamW8bit",
    "PagedAdamW32bit",
    "PagedLion",
    "PagedLion8bit",
    "PagedLion32bit",
    "Signum",
    "ZeroOneAdam",
    "from_bitsandbytes",
    "to_bitsandbytes",
    "to_torch",
]
