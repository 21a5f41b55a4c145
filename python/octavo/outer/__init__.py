# SPDX-License-Identifier: Apache-2.0
"""Local steps with a compressed outer loop (DiLoCo): ranks do not exchange gradients in each step, but now and then how
far they have moved."""

from octavo.outer.outer import Outer
from octavo.outer.rates import FEWEST_ROUNDS, outer_rates, warning_of_few_rounds

__all__ = ["FEWEST_ROUNDS", "Outer", "outer_rates", "warning_of_few_rounds"]
