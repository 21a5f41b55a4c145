# SPDX-License-Identifier: Apache-2.0
"""How the ranks of a run work together: replicas that exchange gradients (ddp), local steps (outer), or ZeRO (zero)."""
