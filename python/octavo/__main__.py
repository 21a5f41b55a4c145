# SPDX-License-Identifier: Apache-2.0
"""The command `octavo`, also as `python -m octavo`. It needs more packages than the library: the extra `train`."""

import os
import re
import sys
from importlib.metadata import requires

from octavo.startup import quick_imports

EXIT_FAILED, EXIT_STOPPED = 1, 130


def main() -> None:
    """Runs the command line of `octavo.cli`. Where a package of the extra `train` is missing, it prints one sentence
    that says so and exits with status 1."""
    _open_missing_streams()
    try:
        with quick_imports():
            from octavo.cli import app

        app(prog_name="octavo")
    except ModuleNotFoundError as missing:
        if missing.name not in _packages_of_the_extra():
            raise
        print(
            f"error: [cli] the command octavo needs the package {missing.name}, which is not installed: "
            f"pip install --no-build-isolation '.[train]' in Octavo's folder installs all that it needs",
            file=sys.stderr,
        )
        sys.exit(EXIT_FAILED)
    except KeyboardInterrupt:  # before a command has begun, which says itself what it had done
        print("error: [cli] stopped by SIGINT: nothing was begun", file=sys.stderr)
        sys.exit(EXIT_STOPPED)


def _open_missing_streams() -> None:
    """Opens the null device for each standard stream that the caller has closed, as `>&-` in a shell does. Python has
    None in place of such a stream, and a file that is opened later, or one of a rank, would take its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # It takes the lowest number that is free, which is that of the stream.
            stream = open(os.devnull, mode)  # noqa: SIM115 - open as long as the process
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def _packages_of_the_extra() -> set[str]:
    """Returns the names of the packages of the extra `octavo[train]`, which are also the names that they are imported
    by."""
    named = [line for line in requires("octavo") or [] if re.search(r"extra == ['\"]train['\"]", line)]
    return {re.match(r"[A-Za-z0-9_]+", line)[0] for line in named}


if __name__ == "__main__":
    main()
