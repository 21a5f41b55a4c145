# SPDX-License-Identifier: Apache-2.0
"""Which Octavo this is, and where its C++ half is installed."""

from importlib.metadata import version
from pathlib import Path

__version__ = version("octavo")


def cmake_dir() -> str:
    """The folder for CMake's ``octavo_DIR``: ``find_package(octavo)`` finds its package file there."""
    from octavo import _C

    return str(Path(_C.__file__).parent / "share" / "cmake" / "octavo")
