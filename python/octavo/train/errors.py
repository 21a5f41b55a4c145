# SPDX-License-Identifier: Apache-2.0
"""How a run fails: one sentence for people, one exit code for programs."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from safetensors import SafetensorError

EXIT_JOB = 1
"""The whole job is at fault (bad data, a foreign --out, …); every rank agrees on the sentence."""
EXIT_USAGE = 2
"""The command line is at fault; nothing was started."""
EXIT_RANK = 70
"""Only this rank failed; the sentence is its own."""
EXIT_PEER = 75
"""This rank is well but lost another rank, where the cause is to be found."""

ERROR_MARK = "error: "
"""The beginning of the last line of a failed process; the launcher looks for it."""
DIVERGED = "the run has diverged"
"""Words in the error of a run that has diverged, and in no other error."""

_has_started_over = False
"""Whether the job of this process has removed an earlier run by --fresh (`note_start_over`)."""

_PLACE_IN_GLOO = re.compile(r"^\[\S*gloo/\S+:\d+\] ")
_PEER_MARKS = (
    *("an exchange with a peer failed", "a peer did not answer", "did not come within", "another rank was lost"),
    *("gloo/", "Connection closed by peer", "Connection reset by peer", "Broken pipe"),
)


class JobError(Exception):
    """A failure that all ranks know of; rank 0 prints it."""


class PeerLost(Exception):
    """A collective failed because another rank, or the way to it, is gone."""


def note_start_over() -> None:
    """Says that the earlier run was removed by --fresh: `continues` advises against --fresh from now on."""
    global _has_started_over
    _has_started_over = True


def continues() -> str:
    """Returns what would work after most failures. Once a run has begun, the same command with --fresh would remove
    it."""
    without = " without --fresh" if _has_started_over else ""
    return f"the same command{without} continues from the last checkpoint, if there is one"


def refuse(sentence: str) -> NoReturn:
    """Refuses an option. Raises ValueError."""
    raise ValueError(f"[train.config] {sentence}")


def warn(text: str) -> None:
    """Prints what a person should know of a run that goes on."""
    print(f"warning: {text}", file=sys.stderr, flush=True)


def sentence(error: BaseException) -> str:
    """Returns the one line that tells a person what went wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = _PLACE_IN_GLOO.sub("", lines[0]) if lines else type(error).__name__
    # A bare KeyError('x') reads as "'x'": such messages need their type to make sense.
    spoken = isinstance(error, (JobError, PeerLost, ValueError, TypeError, OSError, RuntimeError))
    return text if spoken else f"{type(error).__name__}: {text}"


def is_peer_loss(error: BaseException) -> bool:
    """Whether `error` says that another rank died rather than that this one is at fault."""
    if isinstance(error, PeerLost):
        return True
    kind = type(error).__name__
    return kind.startswith("Dist") or (
        isinstance(error, RuntimeError | TimeoutError) and any(mark in str(error) for mark in _PEER_MARKS)
    )


@contextmanager
def writing(*, what: str, where: str) -> Iterator[None]:
    """Raises OSError, in a sentence that says what would work, where a file cannot be written, on a full disk for
    example. Other errors are passed on."""
    try:
        yield
    except Exception as error:
        # safetensors has an error of its own for it, tokenizers raises a bare Exception.
        if is_peer_loss(error) or not (isinstance(error, (OSError, SafetensorError)) or type(error) is Exception):
            raise
        reason = getattr(error, "strerror", None) or sentence(error)
        said = reason if reason.startswith("[") else f"[{where}] {what} cannot be written: {reason}"
        raise OSError(f"{said}; once the disk has room and can be written to, {continues()}") from error


def exit_code(error: BaseException) -> int:
    """Returns the exit code of a rank that ends with `error`."""
    if isinstance(error, JobError):
        return EXIT_JOB
    return EXIT_PEER if is_peer_loss(error) else EXIT_RANK


def show_traceback(error: BaseException) -> None:
    """Prints the traceback of an error that does not explain itself, or of every error where OCTAVO_DEBUG=1 is set.

    Our own errors begin with their place in brackets. OSErrors and the loss of a rank are not mistakes of the program.
    """
    explained = isinstance(error, (JobError, OSError)) or is_peer_loss(error) or str(error).startswith("[")
    if not explained or tracebacks_wanted():
        traceback.print_exception(error)


def tracebacks_wanted() -> bool:
    """Whether the environment variable OCTAVO_DEBUG=1 asks for the traceback of every error."""
    return os.environ.get("OCTAVO_DEBUG") == "1"
