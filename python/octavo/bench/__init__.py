# SPDX-License-Identifier: Apache-2.0
"""Measurements, as ratios taken in one run: against the bandwidth of this machine's memory, and against other
implementations."""
