# SPDX-License-Identifier: Apache-2.0
"""The owner of `--out`: `run.json` holds the identity of a run (`identity`), and no other run writes there."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path
from typing import IO, Any

from octavo import durable_files
from octavo.train import errors
from octavo.train.checkpoint.identity import differences
from octavo.train.checkpoint.writer import is_of_a_run
from octavo.train.options import PRECISIONS

RUN = "run.json"
METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
PLOT = "loss.png"
CHECKPOINT = "checkpoint"
LOCK = "run.lock"
_SCHEMA = 5


def claim(out: Path, identity: dict[str, Any], fresh: bool) -> dict[str, Any] | None:
    """Returns the record (`write_record`) of an earlier run that this one continues, or None where `out` is free. The
    earlier run has the same identity, but it may have fewer steps.

    With `fresh` an earlier run of any identity is ignored: `remove_run` removes it later, once all other checks have
    passed. This function changes nothing in `out`. Raises ValueError where `out` belongs to another configuration, or
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
        differing = differences(record["identity"], identity)
    except (KeyError, TypeError) as error:  # an option is missing, or has a value that none of ours has
        raise _no_record(out / RUN) from error
    if differing:
        raise ValueError(
            f"[train.run_folder] --out {out} belongs to another configuration "
            f"({', '.join(differing)}): choose another --out, or --fresh to start over"
        )
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
        if is_of_a_run(path):
            durable_files.remove(path)
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
