# SPDX-License-Identifier: Apache-2.0
"""Optimizers: drop-in subclasses of ``torch.optim.Optimizer`` whose arithmetic is in C++."""

from octavo.optim.lion import DistributedLion, Lion, Signum
from octavo.optim.onebit_adamw import OneBitAdamW
from octavo.optim.onebit_lamb import OneBitLamb
from octavo.optim.zero_one_adam import ZeroOneAdam

__all__ = ["DistributedLion", "Lion", "OneBitAdamW", "OneBitLamb", "Signum", "ZeroOneAdam"]
