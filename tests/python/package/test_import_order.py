# SPDX-License-Identifier: Apache-2.0
"""No module of the package imports, directly or through others, a module that imports it, not even inside functions.

Imports that are only for type checkers do not count: they never run.
"""

import ast
import gc
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import octavo
from octavo.startup import quick_imports

ROOT = Path(octavo.__file__).parent


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in ROOT.rglob("*.py")}


def nodes_that_run(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from nodes_that_run(child)


def imports_of(path: Path) -> set[str]:
    """Returns the package's modules that a file imports; ``from octavo import _C`` counts as none: the package loads it
    first."""
    named = set()
    for node in nodes_that_run(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            submodules = {alias.name: f"{node.module}.{alias.name}" for alias in node.names if alias.name != "_C"}
            named |= {submodule if submodule in MODULES else node.module for submodule in submodules.values()}
    return named & MODULES.keys()


def test_imports_have_an_order():
    imports = {name: imports_of(path) for name, path in MODULES.items()}
    assert "octavo.accelerator.base" in imports["octavo.accelerator.choose"]
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        raise AssertionError(f"these modules import each other: {' -> '.join(error.args[1])}") from None


def test_the_benchmarks_import_nothing_that_imports_transformers():
    """Importing transformers takes half of a rank's start, and the ranks of `octavo bench ddp` do not need it. Those of
    `octavo bench zero` train a model of it; only that command imports them."""
    reached, waiting = set(), ["octavo.bench.cli", "octavo.bench.advise_cli", "octavo.bench.ddp_jobs"]
    while waiting:
        name = waiting.pop()
        reached.add(name)
        imported = imports_of(MODULES[name]) - reached
        waiting += [other for other in imported if not other.startswith("octavo.bench.zero")]
    assert "octavo.bench.quality.runs" in reached
    assert [name for name in sorted(reached) if "from transformers" in MODULES[name].read_text()] == []


def test_the_package_imports_little_more_than_torch():
    """All commands and ranks wait for this import. Dynamo, Inductor and DTensor take twice as long as torch itself;
    only those who use them should wait for them. torch imports Dynamo with an optimizer."""
    code = "import sys, octavo; print([name for name in sys.argv[1:] if name in sys.modules])"
    heavy = ("torch._dynamo", "torch._inductor", "torch.distributed.tensor", "torch.distributed.checkpoint", "sympy")
    done = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_collector_leaves_what_a_command_imports_alone():
    frozen = gc.get_freeze_count()
    try:
        with pytest.raises(ImportError), quick_imports():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() and gc.get_freeze_count() > frozen
    finally:
        gc.unfreeze()
