# SPDX-License-Identifier: Apache-2.0
"""What a run says about itself: metrics, progress, summary, tables and plots."""
