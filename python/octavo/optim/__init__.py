# SPDX-License-Identifier: Apache-2.0
"""Optimizers: drop-in subclasses of ``torch.optim.Optimizer`` whose arithmetic is in C++."""

from octavo.optim.adam import (
    Adam,
    Adam4bit,
    Adam8bit,
    AdamW,
    AdamW4bit,
    AdamW8bit,
    PagedAdam,
    PagedAdam8bit,
    PagedAdamW,
    PagedAdamW8bit,
)
from octavo.optim.convert import from_bitsandbytes, to_bitsandbytes, to_torch
from octavo.optim.lion import DistributedLion, Lion, Lion8bit, PagedLion, PagedLion8bit, Signum
from octavo.optim.onebit_adamw import OneBitAdamW
from octavo.optim.onebit_lamb import OneBitLamb
from octavo.optim.zero_one_adam import ZeroOneAdam

__all__ = [
    "Adam",
    "Adam4bit",
    "Adam8bit",
    "AdamW",
    "AdamW4bit",
    "AdamW8bit",
    "DistributedLion",
    "Lion",
    "Lion8bit",
    "OneBitAdamW",
    "OneBitLamb",
    "PagedAdam",
    "PagedAdam8bit",
    "PagedAdamW",
    "PagedAdamW8bit",
    "PagedLion",
    "PagedLion8bit",
    "Signum",
    "ZeroOneAdam",
    "from_bitsandbytes",
    "to_bitsandbytes",
    "to_torch",
]
