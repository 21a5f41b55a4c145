# SPDX-License-Identifier: Apache-2.0
"""What is installed beside torch and changes an answer. Nothing is imported that need not be."""

import functools
import importlib
import importlib.metadata
import re


@functools.cache
def has_oneccl() -> bool:
    """Whether oneCCL's bindings, which register the back end ``ccl``, import."""
    try:
        importlib.import_module("oneccl_bindings_for_pytorch")
    except Exception:  # a broken installation raises anything
        return False
    return True


def release(package: str) -> tuple[int, ...] | None:
    """The numbers of the installed release, (2, 10) for 2.10+xpu; None where the package is not installed."""
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
    leading = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, leading[0].split("."))) if leading else ()
