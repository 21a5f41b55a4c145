# SPDX-License-Identifier: Apache-2.0
"""Optimizers: drop-in subclasses of ``torch.optim.Optimizer`` whose arithmetic is in C++."""

from octavo.optim.onebit_adamw import OneBitAdamW

__all__ = ["OneBitAdamW"]
