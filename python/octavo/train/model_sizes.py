# SPDX-License-Identifier: Apache-2.0
"""The sizes of the model that have names."""

from __future__ import annotations

SIZES: dict[str, dict[str, int]] = {
    "tiny": dict(hidden_size=128, intermediate_size=352, num_hidden_layers=4, num_attention_heads=4),
    "small": dict(hidden_size=384, intermediate_size=1024, num_hidden_layers=8, num_attention_heads=6),
    "220m": dict(hidden_size=1024, intermediate_size=2752, num_hidden_layers=12, num_attention_heads=16),
}
LEAST_VOCABULARY = {"220m": 32000}  # with a smaller one a model of that name would have fewer parameters
LEAST_POSITIONS = {"tiny": 512, "small": 512, "220m": 256}
MODELS = tuple(SIZES)
