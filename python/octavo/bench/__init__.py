# SPDX-License-Identifier: Apache-2.0
"""Measurements, as ratios taken in one run: against what the memory of this machine can do, and against the peer."""
