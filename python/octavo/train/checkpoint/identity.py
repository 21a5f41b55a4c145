# SPDX-License-Identifier: Apache-2.0
"""The identity of a run: the options that decide its loss curve, by which its record and its checkpoints are known.

What each option means to an identity stands beside the option (`octavo.train.options`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from octavo.durable_files import printable
from octavo.outer import outer_rates
from octavo.train.config import TrainConfig
from octavo.train.data.dataset import Corpus
from octavo.train.optimizer_kinds import KINDS

_FIELDS = dataclasses.fields(TrainConfig)
_NEVER, _ZERO_ONLY, _IF_GIVEN, _MAY_GROW = (
    {field.name for field in _FIELDS if field.metadata["identity"] == identity}
    for identity in ("never", "with zero", "if given", "may grow")
)
_ABSENT = {field.name: field.metadata["absent"] for field in _FIELDS}


def identity_of(config: TrainConfig, corpus: Corpus, model: dict[str, Any]) -> dict[str, Any]:
    """Returns the options of a run by name. Data and a model's CONFIG.json count by content, not by path or name. An
    option that only ZeRO has counts only between two runs with ZeRO. `key_of` and `differences` apply both rules.

    The number of ranks is not among the options: a run may resume with another one. Step number and learning rates then
    continue; the rows of a step are those that the new number of ranks takes at that step (`Batches.batch`), so that
    within the current epoch some rows come twice and others not at all. The stage of ZeRO is not among them either.
    """
    options = {name: value for name, value in dataclasses.asdict(config).items() if name not in _NEVER}
    options["optimizer"] = config.optimizer_name
    for name in ("plan", "lr", "beta1", "beta2"):
        options[name] = getattr(config, f"resolved_{name}")
    if config.outer:
        plan = config.parsed_plan
        # the momentum is the same on any number of ranks, unless it is spread; a rate that was not given is not
        if not config.outer_spread:
            _, options["outer_momentum"] = outer_rates(config.outer, plan, 1, None, config.outer_momentum)
    options["data"] = {"name": corpus.name, "content": corpus.fingerprint[:12]}
    if config.model.endswith(".json"):
        options["model"] = {"name": printable(Path(config.model).name), "content": fingerprint_of(model)[:12]}
    without = {name for name in _IF_GIVEN if not options[name]} | (set() if config.zero else _ZERO_ONLY)
    return {name: value for name, value in options.items() if name not in without}


def fingerprint_of(model: dict[str, Any]) -> str:
    """Returns what identifies a model's config, by any version of transformers."""
    return _fingerprint({name: value for name, value in model.items() if name != "transformers_version"})


def key_of(identity: dict[str, Any]) -> str:
    """Returns a key that is the same for all runs that may continue from one another's checkpoints."""
    left_out = _ZERO_ONLY | _MAY_GROW
    return _fingerprint({name: _content(value) for name, value in identity.items() if name not in left_out})


def differences(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """Returns the options by which a run with the identity `here` is another one than that with `there`, as text; none
    where it may continue that one, also to more steps. Raises KeyError or TypeError where `there` is no identity."""
    # Both have the same names except for _ZERO_ONLY, which does not count between a run with ZeRO and one without.
    names = sorted(here.keys() - (_ZERO_ONLY - there.keys()) - _IF_GIVEN)
    pairs = {name: (there[name], here[name]) for name in names}
    for name in sorted(_IF_GIVEN):
        pairs[name] = there.get(name, _ABSENT[name]), here.get(name, _ABSENT[name])
    may_grow = not KINDS[here["optimizer"]].sends_updates  # the intervals of such an optimizer are shares of a run
    for name in _MAY_GROW:
        if here[name] > there[name] and may_grow:
            del pairs[name]
    return [
        f"{name} {_shown(old)} there and {_shown(new)} here"
        for name, (old, new) in pairs.items()
        if _content(old) != _content(new)
    ]


def _content(value: Any) -> Any:
    """Returns the part of an option that is compared: for a file its content, not its name."""
    return value["content"] if isinstance(value, dict) else value


def _shown(value: Any) -> Any:
    return f"{value['name']} ({value['content']})" if isinstance(value, dict) else value


def _fingerprint(value: Any) -> str:
    """Returns the SHA-256 of any JSON value, in hex."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
