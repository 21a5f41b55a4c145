# SPDX-License-Identifier: Apache-2.0
"""The LLaMA that is trained: transformers' own class at one of three sizes, or from a CONFIG.json."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

SIZES: dict[str, dict[str, int]] = {
    "tiny": dict(hidden_size=128, intermediate_size=352, num_hidden_layers=4, num_attention_heads=4),
    "small": dict(hidden_size=384, intermediate_size=1024, num_hidden_layers=8, num_attention_heads=6),
    "220m": dict(hidden_size=1024, intermediate_size=2752, num_hidden_layers=12, num_attention_heads=16),
}
LEAST_VOCABULARY = {"220m": 32000}  # with a smaller one a model of that name would have fewer parameters
LEAST_POSITIONS = {"tiny": 512, "small": 512, "220m": 256}


def model_config(name: str, vocab_size: int, seq_len: int, **token_ids: int) -> LlamaConfig:
    """Returns the configuration of `tiny`, `small`, `220m` or of a CONFIG.json in transformers' format.

    `220m` has a vocabulary of 32000 where the tokenizer's is smaller, and so 217,342,976 parameters. `token_ids` are
    pad_token_id, bos_token_id and eos_token_id. A file's own vocabulary must be at least as large as the tokenizer's,
    and its positions at least the row length. Raises ValueError otherwise, and for a file that is missing or not a
    LLaMA's.
    """
    if name in SIZES:
        shape = SIZES[name]
        return LlamaConfig(
            **shape,
            num_key_value_heads=shape["num_attention_heads"],
            vocab_size=max(vocab_size, LEAST_VOCABULARY.get(name, 0)),
            max_position_embeddings=max(seq_len, LEAST_POSITIONS[name]),
            tie_word_embeddings=False,
            initializer_range=(2 / (5 * shape["hidden_size"])) ** 0.5,  # "small init", Nguyen & Salazar 2019
            **token_ids,
        )
    return _from_file(Path(name), vocab_size, seq_len, token_ids)


def build_model(config: LlamaConfig, seed: int) -> LlamaForCausalLM:
    """Returns a freshly initialised model. The same seed gives the same bits on every rank."""
    torch.manual_seed(seed)
    config._attn_implementation = "sdpa"
    model = LlamaForCausalLM(config).float()
    # The values that save_pretrained would set, for engines that write the weights by themselves.
    config.architectures, config.dtype = [type(model).__name__], "float32"
    return model


def _from_file(path: Path, vocab_size: int, seq_len: int, token_ids: dict[str, int]) -> LlamaConfig:
    try:
        options = json.loads(path.read_text())
    except OSError as error:
        raise ValueError(f"[train.model] {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"[train.model] {path} is not JSON: {error}") from error
    kind = options.get("model_type") if isinstance(options, dict) else type(options).__name__
    if kind != "llama":
        raise ValueError(f'[train.model] {path} must have "model_type": "llama", not {kind!r}')
    options.setdefault("vocab_size", vocab_size)
    try:
        config = LlamaConfig(**{**options, **token_ids})
    except Exception as error:  # transformers raises error types of its own
        raise ValueError(f"[train.model] {path} is no config of a LLaMA: {' '.join(str(error).split())}") from error
    if config.num_attention_heads % config.num_key_value_heads:
        raise ValueError(
            f"[train.model] num_attention_heads in {path}, {config.num_attention_heads}, must be a multiple of "
            f"num_key_value_heads, {config.num_key_value_heads}"
        )
    if config.vocab_size < vocab_size:
        raise ValueError(
            f"[train.model] vocab_size in {path} is {config.vocab_size}; the tokenizer needs at least {vocab_size}"
        )
    if config.max_position_embeddings < seq_len:
        raise ValueError(
            f"[train.model] max_position_embeddings in {path} is {config.max_position_embeddings}; it must be at least "
            f"--seq-len, {seq_len}"
        )
    return config
