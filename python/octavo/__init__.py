# SPDX-License-Identifier: Apache-2.0
"""Octavo trains the same model with a fraction of the bytes.

>>> handle = octavo.compress(ddp_model, "int4+ef")     # gradients on the wire: 4 bits instead of 32
>>> octavo.all_reduce(tensor, "bf16")
>>> packed = octavo.packbits(gradient)                 # one bit an element
"""

import torch as torch  # loads the libraries that _C links; _C then registers torch.ops.octavo

from octavo.version import __version__, cmake_dir, require_built_torch

require_built_torch(torch.__version__)

from octavo import _C as _C
from octavo import optim as optim
from octavo._C import Plan
from octavo.accelerator import get_accelerator, pinned, set_accelerator
from octavo.collectives import all_reduce
from octavo.compression.compress import compress
from octavo.compression.handle import Handle
from octavo.ops.xpu_packbits import packbits, unpackbits
from octavo.outer import Outer
from octavo.sign_sgd import CompressedGradientAccumulator, ErrorFeedbackSignSGD, SignSGDCompressor
from octavo.sycl_kernel import SyclKernel
from octavo.zero import initialize

__all__ = [
    "CompressedGradientAccumulator",
    "ErrorFeedbackSignSGD",
    "Handle",
    "Outer",
    "Plan",
    "SignSGDCompressor",
    "SyclKernel",
    "__version__",
    "all_reduce",
    "cmake_dir",
    "compress",
    "get_accelerator",
    "initialize",
    "optim",
    "packbits",
    "pinned",
    "set_accelerator",
    "unpackbits",
]


def __getattr__(name: str) -> object:
    if name == "sycl":  # not imported here: torch serves one accelerator at a time, which would then be sycl
        raise AttributeError(
            "[octavo.sycl] octavo.sycl exists only after `import octavo.sycl`, which makes the device sycl"
        )
    raise AttributeError(f"module 'octavo' has no attribute {name!r}")
