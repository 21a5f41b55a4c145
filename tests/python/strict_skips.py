# SPDX-License-Identifier: Apache-2.0
"""`pytest -p strict_skips`, as tools/test runs it: a skipped test fails, unless this machine explains the skip.

Continuous integration installs everything that tests need. A skip that nobody expects there hides a broken set-up.
"""

import platform
import re
from collections.abc import Callable
from pathlib import Path

import pytest


def _has_cuda() -> bool:
    import torch  # only where a skip needs it: it takes two seconds of each worker

    return torch.cuda.is_available()


def _has_accelerator() -> bool:
    import torch

    return torch.cuda.is_available() or torch.xpu.is_available()


def _has_no_sycl_packages() -> bool:
    return platform.machine() != "x86_64"


def _may_not_make_hosts() -> bool:
    """Whether this process lacks CAP_SYS_ADMIN, as an ordinary user does and root in most containers."""
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return not int(effective[1], 16) >> 21 & 1


#: The reasons for which a test may be skipped, as regular expressions, each with whether it applies to this machine.
ALLOWED: list[tuple[str, Callable[[], bool]]] = [
    (r"network namespaces|ip netns|may not mount", _may_not_make_hosts),
    (r"the flags are those of x86", lambda: platform.machine() != "x86_64"),
    (r"(?i)\bsycl\b", _has_no_sycl_packages),
    (r"the host's allocator keeps no account", lambda: True),
    (r"each rank has a device of its own", _has_accelerator),
    (r"torch.cuda may be initialized", _has_cuda),
]


def is_expected(reason: str) -> bool:
    """Whether a skip with this reason is one that this machine explains."""
    return any(re.search(pattern, reason) and applies() for pattern, applies in ALLOWED)


def _fail_if_unexpected(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not report.skipped or hasattr(report, "wasxfail") or not isinstance(report.longrepr, tuple):
        return
    reason = report.longrepr[2]
    if not is_expected(reason):
        report.outcome = "failed"
        report.longrepr = f"skipped unexpectedly: {reason}\ntests/python/strict_skips.py lists what may be skipped"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    _fail_if_unexpected(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    _fail_if_unexpected(report)
    return report
