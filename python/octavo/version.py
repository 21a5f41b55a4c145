# SPDX-License-Identifier: Apache-2.0
"""Which Octavo this is, which torch it was built against, and where its C++ library is installed."""

from importlib.metadata import version
from pathlib import Path

from octavo.built_with import TORCH  # written by the build

__version__ = version("octavo")


def require_built_torch(found: str) -> None:
    """Raises ImportError where ``found``, the version of the imported torch, is not the version that the build used.

    Octavo's libraries use torch's C++ classes, whose layout changes from release to release. CPU, CUDA and XPU builds
    of one release (``2.13.0+cpu``, ``2.13.0+cu126``) have the same classes.
    """
    if _release(found) == _release(TORCH):
        return
    raise ImportError(
        f"[version.require_built_torch] this Octavo was built against torch {TORCH}, and torch {found} is installed: "
        f"install torch=={_release(TORCH)}, or build Octavo again with the torch that is installed, from its sources: "
        f"pip install --no-build-isolation --no-deps --force-reinstall ."
    )


def _release(torch_version: str) -> str:
    return str(torch_version).partition("+")[0]


def cmake_dir() -> str:
    """Returns the folder for CMake's ``octavo_DIR``, where ``find_package(octavo)`` finds its package file."""
    from octavo import _C

    return str(Path(_C.__file__).parent / "share" / "cmake" / "octavo")
