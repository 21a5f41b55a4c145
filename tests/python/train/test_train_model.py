# SPDX-License-Identifier: Apache-2.0
"""The models of `octavo train`: its sizes, and those of a CONFIG.json."""

from __future__ import annotations

import json
import math

import pytest
import torch
from train_runs import NANO

from octavo.train.model import model_config


def test_broken_model_files_are_named(tmp_path):
    path = tmp_path / "config.json"
    for text, words in (
        ("{", "is not JSON: "),
        ("[]", "not 'list'"),
        ('{"model_type": "bert"}', "not 'bert'"),
        ('{"model_type": "llama", "hidden_size": "x"}', "config.json is no config of a LLaMA: "),
        ('{"model_type": "llama", "hidden_size": 100, "num_attention_heads": 3}', "is no config of a LLaMA: "),
        (
            '{"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 3}',
            "num_attention_heads in ",
        ),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"^\[train\.model\] ") as caught:
            model_config(str(path), 300, 32)
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("num_key_value_heads", 0, "num_key_value_heads in {} must be at least 1, not 0"),
        ("hidden_size", -32, "hidden_size in {} must be at least 1, not -32"),
        ("num_hidden_layers", 0, "num_hidden_layers in {} must be at least 1, not 0"),
        ("head_dim", 3, "head_dim in {}, hidden_size / num_attention_heads, must be even for RoPE, not 3"),
        ("hidden_act", "foo", "hidden_act in {} must be one of gelu, "),
        ("rope_scaling", {"type": "foo", "factor": 2.0}, "rope_scaling in {} must have a type among default, linear, "),
        ("attention_dropout", 5.0, "attention_dropout in {} must be at least 0 and below 1, not 5.0"),
        ("rms_norm_eps", math.nan, "rms_norm_eps in {} must be a finite number above 0, not nan"),
        ("initializer_range", 0.0, "initializer_range in {} must be a finite number above 0, not 0.0"),
        ("rope_theta", 0.0, "rope_theta in {} must be a finite number above 0, not 0.0"),
        ("rope_theta", "x", "rope_theta in {} must be a finite number above 0, not x"),
        ("hidden_size", 10**12, "no LLaMA can be built of {}: "),
        ("output_attentions", True, "output_attentions in {} must be false, or left out, to train and save the model"),
        ("return_dict", False, "return_dict in {} must be true, or left out"),
        ("quantization_config", {"quant_method": "gptq", "bits": 4}, "quantization_config in {} must be null, or left"),
    ],
)
def test_a_field_of_a_model_file_is_refused_before_the_model_is_built(tmp_path, field, value, words):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**NANO, field: value}))
    with pytest.raises(ValueError, match=r"^\[train\.model\] ") as caught:
        model_config(str(path), 300, 32)
    assert words.format(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "millions"), [("tiny", (0.8, 1.5)), ("small", (12, 17)), ("220m", (200, 230))])
def test_sizes_have_about_the_parameters_they_promise(name, millions):
    from transformers import LlamaForCausalLM

    with torch.device("meta"):
        model = LlamaForCausalLM(model_config(name, 2048, 128))
    assert millions[0] < model.num_parameters() / 1e6 < millions[1]
    if name == "220m":
        assert model.num_parameters() == 217_342_976
