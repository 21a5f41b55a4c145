# SPDX-License-Identifier: Apache-2.0
"""Modules under the names that users of DeepSpeed know. The operators themselves are ``torch.ops.octavo``."""
