# SPDX-License-Identifier: Apache-2.0
"""The owner of `--out`: `run.json` holds the options that decide the loss curve, and no other run writes there."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import shutil
from pathlib import Path
from typing import IO, Any

from octavo import durable_files
from octavo.durable_files import printable
from octavo.outer import outer_rates
from octavo.train import errors
from octavo.train.checkpoint.writer import is_of_a_run
from octavo.train.config import TrainConfig
from octavo.train.config_checks import PRECISIONS
from octavo.train.data.dataset import Corpus

RUN = "run.json"
METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
PLOT = "loss.png"
CHECKPOINT = "checkpoint"
LOCK = "run.lock"
_SCHEMA = 5
# These may differ between the parts of one run.
_NOT_IDENTITY = (
    "nproc",
    "zero",
    "compile",
    "device",
    "eval_every",
    "checkpoint_every",
    "out",
    "fresh",
    "compare",
    "port",
    "timeout_s",
)

_ZERO_ONLY = "gather"
# Options that later versions added. An identity has them only if they are given, so that runs of older versions can be
# continued. The value says what the absence of the option means.
_LATER_OPTIONS = {"adamw_lr": "that of lr", "outer_spread": False}
# A run may be continued to more steps, from the checkpoints of fewer.
_STEPS = "steps"


def identity_of(config: TrainConfig, corpus: Corpus, model: dict[str, Any]) -> dict[str, Any]:
    """Returns the options of a run by name. Data and a model's CONFIG.json count by content, not by path or name. An
    option that only ZeRO has counts only between two runs with ZeRO. `key_of` and `claim` apply both rules.

    The number of ranks is not among the options: a run may resume with another one. Step number and learning rates then
    continue; the rows of a step are those that the new number of ranks takes at that step (`Batches.batch`), so that
    within the current epoch some rows come twice and others not at all. The stage of ZeRO is not among them either.
    """
    options = {k: v for k, v in dataclasses.asdict(config).items() if k not in _NOT_IDENTITY}
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
    if not config.zero:
        del options[_ZERO_ONLY]
    for name in _LATER_OPTIONS:
        if not options[name]:
            del options[name]
    return options


def fingerprint_of(model: dict[str, Any]) -> str:
    """Returns what identifies a model's config, by any version of transformers."""
    return _fingerprint({name: value for name, value in model.items() if name != "transformers_version"})


def key_of(identity: dict[str, Any]) -> str:
    """Returns a key that is the same for all runs that may continue from one another's checkpoints."""
    return _fingerprint({name: _content(value) for name, value in identity.items() if name not in (_ZERO_ONLY, _STEPS)})


def claim(out: Path, identity: dict[str, Any], fresh: bool) -> dict[str, Any] | None:
    """Returns the record (`write_record`) of an earlier run that this one continues, or None where `out` is free. The
    earlier run has the same identity, but it may have fewer steps.

    With `fresh` an earlier run of any identity is ignored: `remove_run` removes it later, once all else is known to be
    well. This function changes nothing in `out`. Raises ValueError where `out` belongs to another configuration, or
    where files with the names of a run's are there without a `run.json`.
    """
    record = _read(out / RUN)
    if record is None:
        _refuse_foreign(out)
        return None
    if fresh:
        return None
    if record["schema"] != _SCHEMA:
        raise ValueError(
            f"[train.run_folder] --out {out} is from another version of Octavo (schema {record['schema']}, this one "
            f"continues {_SCHEMA}): choose another --out, or --fresh to start over"
        )
    try:
        _refuse_other(out, record["identity"], identity)
    except (KeyError, TypeError) as error:  # an option is missing, or has a value that none of ours has
        raise _no_record(out / RUN) from error
    if not _is_choice_of(identity, record["resolved"]):
        raise _no_record(out / RUN)
    return record


def lock(out: Path) -> IO[str]:
    """Locks `out` against other runs until the file is closed or its process is gone. Raises ValueError where another
    run has the lock."""
    durable_files.make_folder(out)
    with errors.writing(what=str(out / LOCK), where="train.run_folder"):
        file = (out / LOCK).open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        if isinstance(error, BlockingIOError):
            trouble, hint = "is locked by another running job", ", or wait for that job to end"
        else:
            trouble, hint = f"cannot be locked ({error.strerror}), as on some network disks", " on a disk with locks"
        raise ValueError(f"[train.run_folder] --out {out} {trouble}: choose another --out{hint}") from error
    return file


def remove_run(out: Path) -> None:
    """Removes what a run has written to `out`, and nothing else. Raises OSError where something cannot be removed: the
    next start would continue from it."""
    checkpoint = out / CHECKPOINT
    for path in list(checkpoint.iterdir()) if checkpoint.exists() else []:
        if not is_of_a_run(path):
            continue
        if path.is_symlink():
            path.unlink()
        else:
            shutil.rmtree(path)
    if checkpoint.is_dir() and not checkpoint.is_symlink() and not any(checkpoint.iterdir()):
        checkpoint.rmdir()
    sweep(out)
    # The record is removed last: a run killed in between can still be recognised and removed.
    for name in (METRICS, SUMMARY, PLOT, RUN):
        (out / name).unlink(missing_ok=True)


def sweep(out: Path) -> None:
    """Removes what a killed run had not finished writing to `out`, which this process has locked. Raises OSError."""
    for name in (SUMMARY, PLOT, RUN):
        durable_files.sweep(out / name)


def write_record(out: Path, identity: dict[str, Any], resolved: dict[str, Any]) -> None:
    """Marks `out` as the folder of this run. `resolved` is what it chose by itself and keeps on resume."""
    durable_files.write_json(out / RUN, dict(schema=_SCHEMA, identity=identity, resolved=resolved))


def _read(path: Path) -> dict[str, Any] | None:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return {"schema": record["schema"], "identity": dict(record["identity"]), "resolved": dict(record["resolved"])}
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(
            f"[train.run_folder] {path} cannot be read ({error.strerror}): make it readable, or choose another --out"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise _no_record(path) from error


def _is_choice_of(identity: dict[str, Any], resolved: dict[str, Any]) -> bool:
    """Whether a run with the options `identity` can have chosen what `resolved` says, which may be nothing."""
    asked = identity["precision"]
    choices = [name for name in PRECISIONS if name != "auto"] if asked == "auto" else [asked]
    return "precision" not in resolved or resolved["precision"] in choices


def _no_record(path: Path) -> ValueError:
    return ValueError(f"[train.run_folder] {path} is not the record of a run: restore it, or choose another --out")


def _refuse_foreign(out: Path) -> None:
    found = [name for name in (METRICS, SUMMARY, PLOT) if (out / name).exists()]
    checkpoint = out / CHECKPOINT  # --fresh leaves it where others have files in it
    if checkpoint.exists() and (not checkpoint.is_dir() or any(map(is_of_a_run, checkpoint.iterdir()))):
        found.append(CHECKPOINT)
    if found:
        raise ValueError(
            f"[train.run_folder] --out {out} has a {found[0]} but no {RUN}, so it is not the folder of a run: "
            f"choose another --out"
        )


def _refuse_other(out: Path, there: dict[str, Any], here: dict[str, Any]) -> None:
    # Both have the same names except for _ZERO_ONLY, which does not count between a run with ZeRO and one without.
    names = sorted(here.keys() - ({_ZERO_ONLY} - there.keys()) - set(_LATER_OPTIONS))
    pairs = {name: (there[name], here[name]) for name in names}
    for name, absent in _LATER_OPTIONS.items():
        pairs[name] = there.get(name, absent), here.get(name, absent)
    if here[_STEPS] > there[_STEPS] and here["optimizer"] != "zero-one-adam":  # whose intervals are shares of a run
        del pairs[_STEPS]
    differing = [
        f"{name} {_shown(old)} there and {_shown(new)} here"
        for name, (old, new) in pairs.items()
        if _content(old) != _content(new)
    ]
    if differing:
        raise ValueError(
            f"[train.run_folder] --out {out} belongs to another configuration "
            f"({', '.join(differing)}): choose another --out, or --fresh to start over"
        )


def _content(value: Any) -> Any:
    """Returns the part of an option that is compared: for a file its content, not its name."""
    return value["content"] if isinstance(value, dict) else value


def _shown(value: Any) -> Any:
    return f"{value['name']} ({value['content']})" if isinstance(value, dict) else value


def _fingerprint(value: Any) -> str:
    """Returns the SHA-256 of any JSON value, in hex."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
