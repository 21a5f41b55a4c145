# SPDX-License-Identifier: Apache-2.0
"""A user's own operators, in C++ and SYCL, built against Octavo.

>>> octavo.build.load("gated_add", ["gated_add.cpp", "gated_add.sycl"])     # now torch.ops.example.gated_add is there

or in a ``setup.py``, for a package that is installed:

>>> from octavo.build import BuildExtension, extension
>>> setup(ext_modules=[extension("gated_add", [...])], cmdclass={"build_ext": BuildExtension})

A source ``NAME.sycl`` is device code: ``octavo::SyclKernel`` (``<octavo/device.h>``) compiles it at run time, for the
device at hand. The build puts its text into the library as ``extern const char* const NAME_sycl;``, so that the built
library needs no file beside it. ``examples/extension`` is a complete example.
"""

import os
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from setuptools import Extension
from torch.utils import cpp_extension

from octavo import _C
from octavo.durable_files import write_text

_PACKAGE = Path(_C.__file__).parent
# Where SYCL's packages install their headers and libraries: beside lib/pythonX.Y/site-packages, which is not in
# sys.prefix where pip has installed for a user, or beside Debian's own Python.
_SYCL = next((folder for folder in _PACKAGE.parents if (folder / "include/sycl/sycl.hpp").exists()), Path(sys.prefix))
_FLAGS = ["-std=c++20", "-DSYCL_DISABLE_FSYCL_SYCLHPP_WARNING"]
_DELIMITER = "__octavo__"


def include_dirs(sycl: bool = False) -> list[str]:
    """Returns the folders of ``<octavo/device.h>`` and Octavo's other headers.

    ``sycl``: whether to add the folder of SYCL's own headers, which ``<octavo/sycl.h>`` needs. Raises
    NotImplementedError where they are not installed.
    """
    own = [str(_PACKAGE / "include")]
    if not sycl:
        return own
    if not (_SYCL / "include" / "sycl" / "sycl.hpp").exists():
        raise NotImplementedError(
            "[build.include_dirs] SYCL's headers are not installed: pip install intel-sycl-rt intel-opencl-rt"
        )
    return [*own, str(_SYCL / "include")]


def link_arguments(sycl: bool = False) -> list[str]:
    """Returns the linker's arguments for liboctavo, liboctavo_core and, with ``sycl``, libsycl. At run time the
    libraries are found in the folders where they are now."""
    folders = [_PACKAGE / "lib", *([_SYCL / "lib"] if sycl else [])]
    libraries = ["-loctavo", "-loctavo_core", *(["-lsycl"] if sycl else [])]
    return [f"-L{folder}" for folder in folders] + libraries + [f"-Wl,-rpath,{folder}" for folder in folders]


def extension(name: str, sources: Sequence[str | os.PathLike[str]], sycl: bool = False, **options: Any) -> Extension:
    """Returns a setuptools ``Extension`` that is compiled and linked against torch and Octavo.

    - ``name``: the name of the extension.
    - ``sources``: paths of C++ files and ``.sycl`` files.
    - ``sycl``: whether a source includes ``<octavo/sycl.h>``.
    - ``options``: further options of ``Extension``.
    """
    ext = cpp_extension.CppExtension(name, [str(source) for source in sources], **options)
    ext.include_dirs = include_dirs(sycl) + list(ext.include_dirs)
    ext.extra_link_args = link_arguments(sycl) + list(ext.extra_link_args or [])
    _add_flags(ext)
    return ext


class BuildExtension(cpp_extension.BuildExtension):
    """torch's ``build_ext``, which also takes ``.sycl`` files among the sources of an Extension that ``extension()``
    returned."""

    def build_extensions(self) -> None:
        """Builds every Extension of the package."""
        for ext in self.extensions:
            ext.sources = _with_embedded(ext.sources, Path(self.build_temp) / ext.name)
        super().build_extensions()


def load(name: str, sources: Sequence[str | os.PathLike[str]], sycl: bool = False, verbose: bool = False) -> None:
    """Compiles the sources, where they have changed since the last time, and loads the library, which registers its
    operators.

    - ``name``: the name of the library, unique among all libraries that this user builds.
    - ``sources``: paths of C++ files and ``.sycl`` files.
    - ``sycl``: whether a source includes ``<octavo/sycl.h>``.
    - ``verbose``: whether torch prints the commands of the build.

    The first call takes half a minute, because torch's headers are large. Raises ValueError for a source that does not
    exist, RuntimeError with the compiler's message.
    """
    if isinstance(sources, str | os.PathLike) or not sources:
        raise ValueError(f"[build.load] expected a list of source files, got {sources!r}")
    for source in sources:
        if not Path(source).is_file():
            raise ValueError(f"[build.load] the source file {source} does not exist")
    with _tools_on_path():
        folder = Path(cpp_extension._get_build_directory(name, verbose))
        cpp_extension.load(
            name,
            _with_embedded([str(Path(source).absolute()) for source in sources], folder),
            extra_cflags=_FLAGS,
            extra_ldflags=link_arguments(sycl),
            extra_include_paths=include_dirs(sycl),
            is_python_module=False,
            verbose=verbose,
        )


def _with_embedded(sources: Sequence[str], folder: Path) -> list[str]:
    """Returns the sources with a generated C++ file in place of each ``.sycl`` file."""
    stems = [Path(source).stem for source in sources if source.endswith(".sycl")]
    if len(set(stems)) < len(stems):
        raise ValueError(
            f"[build.extension] two .sycl files have the same name, among {', '.join(sorted(stems))}: rename one"
        )
    return [_embed(Path(source), folder) if source.endswith(".sycl") else source for source in sources]


def _embed(source: Path, folder: Path) -> str:
    name, text = source.stem, source.read_text()
    if not name.isidentifier():
        raise ValueError(
            f"[build.extension] the name of {source} is not a C++ identifier, which its symbol {name}_sycl must be"
        )
    if f"){_DELIMITER}" in text:
        raise ValueError(
            f"[build.extension] {source} contains '){_DELIMITER}', which ends the string that it is embedded in"
        )
    symbol = f"extern const char* const {name}_sycl;\nconst char* const {name}_sycl = "
    content = f'// From {source.name}.\n{symbol}R"{_DELIMITER}({text}){_DELIMITER}";\n'
    target = folder / f"{name}_sycl.cpp"
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists() or target.read_text() != content:  # a file that is not written is not compiled again
        write_text(target, content)  # at once: another rank may compile it
    return str(target)


def _add_flags(ext: Extension) -> None:
    flags = ext.extra_compile_args
    cxx = flags.setdefault("cxx", []) if isinstance(flags, dict) else flags
    cxx[:0] = _FLAGS  # first, so that the user's own flags override them


@contextmanager
def _tools_on_path() -> Iterator[None]:
    """Puts the folder of this Python's scripts first in PATH, so that the Ninja installed there is found also where the
    environment is not activated."""
    before = os.environ.get("PATH", "")
    os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), before])
    try:
        yield
    finally:
        os.environ["PATH"] = before
