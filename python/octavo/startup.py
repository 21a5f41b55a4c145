# SPDX-License-Identifier: Apache-2.0
"""How a command of `octavo` imports the packages that it needs: torch and transformers are 5000 modules."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quick_imports() -> Iterator[None]:
    """For a program's own imports, which stay to its end: the garbage collector does not run meanwhile, and never looks
    at them afterwards, neither while training nor when the program ends. It takes a third off a rank's start and end.

    What else there is of Python objects is kept too, so this is for commands, not for the library.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
