# SPDX-License-Identifier: Apache-2.0
"""Every ```python block of README.md, HACKING.md and docs/ runs: on two ranks, in order, and in one namespace per
section. Every link between these pages leads to a file, and to one of its headings."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from rank_pool import RankPool
from torch import nn

import octavo.sycl

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "HACKING.md", *sorted((ROOT / "docs").rglob("*.md"))]

#: Sections whose blocks need something that is not everywhere, with a function that says what is missing.
NEEDS = {
    "devices.md: Any device, and DeepSpeed": lambda: (
        "" if _has("deepspeed") else "the package deepspeed is not installed"
    ),
    "devices.md: The device sycl, and kernels of your own": lambda: _no_sycl(octavo.sycl.why_missing()),
}


def snippets() -> dict[str, list[tuple[int, str]]]:
    """Returns for each "page: section" its blocks of Python, each with the line of the page at which it begins."""
    found: dict[str, list[tuple[int, str]]] = {}
    for page in PAGES:
        name = page.relative_to(ROOT / "docs" if page.is_relative_to(ROOT / "docs") else ROOT)
        section, block, begin = "", None, 0
        for number, line in enumerate(page.read_text().splitlines(), 1):
            if block is not None:
                if line.startswith("```"):
                    found.setdefault(f"{name}: {section}", []).append((begin, "\n".join(block)))
                    block = None
                else:
                    block.append(line)
            elif heading := re.match(r"## (.+)", line):
                section = heading[1]
            elif line == "```python":
                block, begin = [], number + 1
    return found


def test_the_pages_have_snippets_to_run():
    assert {section.partition(":")[0] for section in snippets()} == {
        *("README.md", "devices.md", "gradients.md", "local_steps.md", "optimizers.md", "zero.md")
    }
    assert set(NEEDS) <= set(snippets())


def test_links_lead_to_files_and_their_headings():
    for page in PAGES:
        for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
            if link.startswith("https://"):
                continue
            target, _, anchor = link.partition("#")
            file = page.parent / target if target else page
            assert file.exists(), f"{page.name}: {link}"
            assert not anchor or anchor in _anchors(file), f"{page.name}: {link}"


def _anchors(page: Path) -> list[str]:
    """Returns what a link may name behind a `#`, by GitHub's rules."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)", prose, re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]


@pytest.mark.ranks
@pytest.mark.timeout(180)
@pytest.mark.parametrize("section", snippets())
def test_the_snippets_of_a_section_run(tmp_path, section):
    if reason := NEEDS.get(section, str)():
        pytest.skip(reason)
    # ranks of its own, since what a section installs, such as an accelerator, stays in their processes
    ranks = RankPool(2)
    try:
        ranks.run(_run_section, section, str(tmp_path))
    finally:
        ranks.stop()


def _run_section(rank: int, section: str, folder: str) -> None:
    """Runs a section in a rank's process. The pool has made the process group, so `init_process_group` is left out."""
    os.chdir(folder)
    torch.manual_seed(0)
    names = {"steps": 40, "x": torch.ones(1000), "tensor": torch.randn(5000)}
    names |= {"batches": torch.randn(40, 4, 64).unbind(), "loss": lambda model, batch: model(batch).square().mean()}
    for begin, block in snippets()[section]:
        own_ways = ("DistributedDataParallel(model)", "Outer(model", "octavo.initialize(")
        if any(way in block for way in own_ways):  # each of these blocks trains a model of its own
            names["model"] = nn.Linear(64, 64)
        code = "\n".join(line for line in block.splitlines() if not line.startswith("dist.init_process_group("))
        exec(compile("\n" * (begin - 1) + code, section, "exec"), names)
        if "optimizer = " in block:
            _train(names)


def _train(names: dict) -> None:
    """Makes a step with what the snippet made: the loop must be the same as in any other script."""
    names["optimizer"].zero_grad()
    names["ddp"](torch.randn(4, 64)).square().mean().backward()
    names["optimizer"].step()
    weight = names["model"].weight.detach()
    everyones = [torch.empty_like(weight) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, weight)
    assert all(torch.equal(weight, other) for other in everyones)


def _no_sycl(reason: str) -> str:
    return f"no device sycl: {reason}" if reason else ""


def _has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
