# SPDX-License-Identifier: Apache-2.0
"""What the benches measure where their command names nothing."""

from __future__ import annotations

DDP_PLANS = ("dense", "bf16", "int4+ef", "sign+ef")
DDP_HOOKS = ("torch-powersgd:4", "torch-int8")
"""torch's own hooks beside these plans, except under torchrun (torch_hooks.DOUBTFUL)."""
ADVISE_PLANS = ("dense", "bf16", "int8+ef", "int4+ef", "sign+ef", "topk:0.01+ef", "outer:20/sign+ef")
ALLREDUCE_PLANS = ("dense", "bf16", "int8", "int4", "sign")
ALLREDUCE_SIZES_KIB = (64, 1024, 16384, 65536)
ZERO_CONTENDERS = (
    "ddp",
    "ddp-compiled",
    "torch-zero1",
    "fsdp2",
    "fsdp2:keep",
    "fsdp2-compiled",
    "zero1",
    "zero2",
    "zero3",
    "zero1-compiled",
    "zero3-compiled",
    "zero2:int8/int8+ef",
    "zero3:int8/int4+ef",
)
