# SPDX-License-Identifier: Apache-2.0
"""What identifies a run: the record and the keys of runs that older versions have begun must stay the same, byte for
byte."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, get_args

import pytest

from octavo.train.checkpoint import identity
from octavo.train.config import TrainConfig
from octavo.train.data.dataset import Corpus
from octavo.train.options import Identity

CORPUS = Corpus("notes.jsonl", [], [], False, "0123456789abcdef" * 4)
MODEL = {"hidden_size": 16, "num_hidden_layers": 2, "transformers_version": "5.0.0"}
# The options in the order of a run.json, with the values of a run to which none is given.
PLAIN = {
    "data": {"name": "notes.jsonl", "content": "0123456789ab"},
    "plan": "sign+ef",
    "optimizer": "onebit-adamw",
    "gather": None,
    "outer": 0,
    "outer_delay": 0,
    "outer_fragments": 1,
    "outer_lr": None,
    "outer_momentum": None,
    "outer_spread": False,
    "model": "tiny",
    "precision": "auto",
    "steps": 800,
    "batch_size": 8,
    "seq_len": 128,
    "grad_accum": 1,
    "lr": 0.003,
    "adamw_lr": None,
    "beta1": 0.5,
    "beta2": 0.999,
    "weight_decay": 0.01,
    "clip_norm": None,
    "seed": 0,
}
MAY_LACK = ("gather", "outer_spread", "adamw_lr")
"""Options that an identity lacks where they are not given, `gather` also without ZeRO."""


def recorded(**changes: Any) -> str:
    """Returns the text of an identity that differs from PLAIN in `changes`."""
    options = {name: value for name, value in PLAIN.items() if name in changes or name not in MAY_LACK}
    return json.dumps(options | changes)


@pytest.mark.parametrize(
    ("options", "text", "key"),
    [
        ({}, recorded(), "1bb248b35dbed2934c80496d77180cc2705ebd8eca008c1c6cd53002a17f2772"),
        (
            dict(plan="int4+ef", optimizer="adamw", zero=2, gather="int8", compile=True, fresh=True, port=1),
            recorded(plan="int4+ef", optimizer="adamw", gather="int8"),
            "b99137647f4b278ce03f7e244c18484a5113a5a5911af67a90b16c9010b40a1d",
        ),
        (
            dict(plan="dense", optimizer="muon", adamw_lr=1e-3, clip_norm=1.0, model="a/nano.json"),
            recorded(
                plan="dense",
                optimizer="muon",
                model={"name": "nano.json", "content": "471ff383a313"},
                adamw_lr=0.001,
                beta1=0.95,
                clip_norm=1.0,
            ),
            "0ba23f2096d3f4876026dbf0ca457f5bb0887bdd54cea71d54f71c05fa19e7ea",
        ),
        (
            dict(plan="sign+ef", optimizer="adamw", outer=20, outer_delay=5, outer_spread=True),
            recorded(optimizer="adamw", outer=20, outer_delay=5, outer_spread=True),
            "c4680a4bb54ed6691c020df22002ef631078a5c3daa0c999df99b664e2d158c3",
        ),
        (
            dict(plan="sign+ef", optimizer="adamw", outer=20),
            recorded(optimizer="adamw", outer=20, outer_momentum=0.3),
            "b705822056949834c05651d575d2525221c8f10295ce43684186b7ab65c76c50",
        ),
        (
            dict(optimizer="signum", data="x.jsonl", steps=5, seed=3),
            recorded(plan="sign-vote", optimizer="signum", lr=0.0006, beta1=0.9, beta2=None, steps=5, seed=3),
            "d1a91f4eda595bea21a6d29369b9f1caf5e00039e0ece8ba7c8d99e83b3e8a05",
        ),
    ],
)
def test_the_identity_and_the_key_of_a_run_stay_the_same(options, text, key):
    here = identity.identity_of(TrainConfig(**options), CORPUS, MODEL)
    assert (json.dumps(here), identity.key_of(here)) == (text, key)


def test_every_kind_of_identity_has_an_option():
    assert {field.metadata["identity"] for field in dataclasses.fields(TrainConfig)} == set(get_args(Identity))
