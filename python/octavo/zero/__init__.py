# SPDX-License-Identifier: Apache-2.0
"""ZeRO stages 1, 2 and 3 by Octavo's engine (``octavo/deepcompile/engine.h``)."""

from octavo.zero import dc_effects as dc_effects  # registers what torch.compile must know of torch.ops.dc
from octavo.zero.config import ZeroConfig
from octavo.zero.engine import ZeroEngine, initialize

__all__ = ["ZeroConfig", "ZeroEngine", "initialize"]
