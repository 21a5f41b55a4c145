# SPDX-License-Identifier: Apache-2.0
"""What a rank does: it meets the others, runs the job and leaves. It reports a failure by a sentence and an exit
code."""

from __future__ import annotations

import atexit
import dataclasses
import faulthandler
import os
import signal
import sys
from typing import NoReturn

from octavo.console import make_console
from octavo.train import compare, errors
from octavo.train.config import TrainConfig
from octavo.train.job import run_job
from octavo.train.launch import world


def run_rank(config: TrainConfig) -> NoReturn:
    """Runs this process's part of the job and ends the process, with 0 or an exit code of `errors`."""
    faulthandler.enable()  # a crash in native code then shows where Python was
    try:
        here = world.join(config.timeout_s)
        if here.from_main(here.has_started_over()) and config.fresh:
            # this attempt continues from the checkpoints of the one before
            here.note_start_over()
            config = dataclasses.replace(config, fresh=False)
        console = make_console() if here.is_main else None
        if config.compare:
            compare.run_comparison(config, here, console)
        else:
            run_job(config, here, console)
        world.leave()
    except KeyboardInterrupt:
        os._exit(128 + signal.SIGINT)
    except SystemExit:  # rich raises it where nobody reads its output any more
        _fail(RuntimeError("[train.rank_main] nothing reads this command's output any more"))
    except Exception as error:
        _fail(error)
    atexit._run_exitfuncs()
    _end(0)


def _fail(error: Exception) -> NoReturn:
    errors.show_traceback(error)
    code = errors.exit_code(error)
    shared = isinstance(error, errors.JobError)
    if not shared or os.environ.get("RANK") == "0":
        said = errors.sentence(error)
        if code == errors.EXIT_PEER:
            said = f"lost another rank: {said}; {errors.continues()}"
        print(f"{errors.ERROR_MARK}{said}", file=sys.stderr)
    _end(code)


def _end(code: int) -> NoReturn:
    """Ends the process without tearing the interpreter down.

    A thread of Gloo may still be about to release a tensor that Python made, and takes the GIL for it. An interpreter
    that is being torn down ends that thread inside of a destructor, which ends the process by SIGABRT. After a failure
    the process group would also wait for peers that are gone.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
