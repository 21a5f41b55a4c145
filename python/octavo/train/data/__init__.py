# SPDX-License-Identifier: Apache-2.0
"""The data of a run: reading, splitting, tokenizing, packing, and giving rows to ranks."""
