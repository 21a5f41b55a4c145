# SPDX-License-Identifier: Apache-2.0
"""The accelerator of Intel GPUs under the module name that DeepSpeed gives it."""

from octavo.accelerator.devices import XPU_Accelerator

__all__ = ["XPU_Accelerator"]
