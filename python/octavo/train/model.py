# SPDX-License-Identifier: Apache-2.0
"""The LLaMA that is trained: transformers' own class at one of three sizes, or from a CONFIG.json."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any, NoReturn

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.activations import ACT2FN
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from octavo.train.model_sizes import LEAST_POSITIONS, LEAST_VOCABULARY, SIZES

COUNTS = (*SIZES["tiny"], "num_key_value_heads", "head_dim")
"""The fields of a CONFIG.json that must be at least 1; transformers takes any whole number."""
ROPE_TYPES = ("default", *ROPE_INIT_FUNCTIONS)

_ATTENTION = "sdpa"
# What a model's outputs and saved files need; with other values the first step or the first checkpoint fails.
_USUAL = {"output_attentions": False, "output_hidden_states": False, "return_dict": True, "quantization_config": None}


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
    config._attn_implementation = _ATTENTION
    model = LlamaForCausalLM(config).float()
    # The values that save_pretrained would set, for strategies that write the weights by themselves.
    config.architectures, config.dtype = [type(model).__name__], "float32"
    return model


def seed_rank(seed: int, rank: int) -> None:
    """Gives each rank random numbers of its own for the steps. With the same ones all ranks would drop the same
    activations. Rank 0 keeps those that follow the initialisation."""
    if rank:
        torch.manual_seed(random.Random(f"{seed}/{rank}").getrandbits(63))


def _from_file(path: Path, vocab_size: int, seq_len: int, token_ids: dict[str, int]) -> LlamaConfig:
    options = _read(path)
    for name in COUNTS:
        if isinstance(options.get(name), int) and options[name] < 1:
            _fail(f"{name} in {path} must be at least 1, not {options[name]}")
    options.setdefault("vocab_size", vocab_size)
    try:
        config = LlamaConfig(**{**options, **token_ids})
    except Exception as error:  # transformers raises error types of its own
        _fail(f"{path} is no config of a LLaMA: {' '.join(str(error).split())}", error)
    _check_values(config, path)
    if config.vocab_size < vocab_size:
        _fail(f"vocab_size in {path} is {config.vocab_size}; the tokenizer needs at least {vocab_size}")
    if config.max_position_embeddings < seq_len:
        _fail(
            f"max_position_embeddings in {path} is {config.max_position_embeddings}; it must be at least --seq-len, "
            f"{seq_len}"
        )
    _check_buildable(config, path)
    return config


def _read(path: Path) -> dict[str, Any]:
    try:
        options = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        _fail(f"{path} cannot be read: {error.strerror}", error)
    except ValueError as error:
        _fail(f"{path} is not JSON: {error}", error)
    kind = options.get("model_type") if isinstance(options, dict) else type(options).__name__
    if kind != "llama":
        _fail(f'{path} must have "model_type": "llama", not {kind!r}')
    return options


def _check_values(config: LlamaConfig, path: Path) -> None:
    """Refuses what transformers would refuse only while it builds the model, or in the first step."""
    heads, shared = config.num_attention_heads, config.num_key_value_heads
    if heads % shared:
        _fail(f"num_attention_heads in {path}, {heads}, must be a multiple of num_key_value_heads, {shared}")
    if config.head_dim % 2:
        _fail(f"head_dim in {path}, hidden_size / num_attention_heads, must be even for RoPE, not {config.head_dim}")
    if config.hidden_act not in ACT2FN:
        _fail(f"hidden_act in {path} must be one of {', '.join(ACT2FN)}, not '{config.hidden_act}'")
    of_rope = config.rope_parameters or {}
    numbers = dict(
        rms_norm_eps=config.rms_norm_eps,
        initializer_range=config.initializer_range,
        rope_theta=of_rope.get("rope_theta", 1.0),
    )
    for name, number in numbers.items():
        if not isinstance(number, int | float) or not 0 < number < math.inf:
            _fail(f"{name} in {path} must be a finite number above 0, not {number}")
    rope = of_rope.get("rope_type", "default")
    if rope not in ROPE_TYPES:
        _fail(f"rope_scaling in {path} must have a type among {', '.join(ROPE_TYPES)}, not '{rope}'")
    if not 0 <= config.attention_dropout < 1:
        _fail(f"attention_dropout in {path} must be at least 0 and below 1, not {config.attention_dropout}")
    for name, usual in _USUAL.items():
        if (value := getattr(config, name, usual)) != usual:
            _fail(
                f"{name} in {path} must be {json.dumps(usual)}, or left out, to train and save the model, not {value}"
            )


def _check_buildable(config: LlamaConfig, path: Path) -> None:
    try:
        with torch.device("meta"):  # takes no memory
            LlamaForCausalLM(config)
    except Exception as error:
        said = " ".join(str(error).split())
        _fail(f"no LLaMA can be built of {path}: {type(error).__name__}: {said}", error)


def _fail(sentence: str, cause: Exception | None = None) -> NoReturn:
    raise ValueError(f"[train.model] {sentence}") from cause
