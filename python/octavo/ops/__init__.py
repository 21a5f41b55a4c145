# SPDX-License-Identifier: Apache-2.0
"""Modules by the names that DeepSpeed's users know; the operators themselves are ``torch.ops.octavo``."""
