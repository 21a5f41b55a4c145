# SPDX-License-Identifier: Apache-2.0
"""Separate hosts on one machine: network namespaces joined by a bridge, over links of a given rate. Needs root."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from types import TracebackType

RATES = ("10mbit", "100mbit", "1gbit", "10gbit")
_BURSTS = {"10mbit": "32kb", "100mbit": "64kb"}
"""What a link sends at once after a pause, where that is not 512 kB. It must be little beside a step, or steps of few
bytes would hardly see the link: 64 kB are 5 ms of 100 Mbit/s, and 512 kB are 4 ms of 1 Gbit/s."""
UNSHAPED = "unshaped"
"""The name, in a table of links, of this machine as it is."""
STOP_S = 10.0
_numbers = itertools.count()


def why_no_hosts() -> str | None:
    """Returns a sentence that says why hosts cannot be made here; None where they can."""
    missing = [command for command in ("ip", "tc") if shutil.which(command) is None]
    if missing:
        are = "command {} is" if len(missing) == 1 else "commands {} are"
        return f"the {are.format(' and '.join(missing))} missing: install Debian's package iproute2"
    if os.geteuid() != 0:
        return "only root can make network namespaces: run the same command as root"
    probe = f"octavo{os.getpid()}-probe"
    try:
        _run("ip", "netns", "add", probe)
        _run("ip", "netns", "delete", probe)
    except RuntimeError as error:
        return str(error).removeprefix("[bench.linked_hosts] ")
    return None


class Hosts:
    """``with Hosts(2, "1gbit") as hosts: hosts.start(host, command, environment)``.

    Each host has a network stack of its own and one core, which hosts share where there are more hosts than cores. It
    sees the other hosts, over a link of ``rate`` in each direction, and nothing else. ``rate`` is one that tc knows;
    None: the links are not shaped. Leaving the block ends the processes that were started. Raises RuntimeError with one
    sentence where the system refuses.
    """

    def __init__(self, count: int, rate: str | None = None):
        self.count = count
        self._rate = rate
        self._switch = f"octavo{os.getpid()}-{next(_numbers)}"
        self._started: list[subprocess.Popen[str]] = []

    def address(self, host: int) -> str:
        return f"10.77.0.{host + 1}"

    def __enter__(self) -> Hosts:
        reason = why_no_hosts()
        if reason is not None:
            raise RuntimeError(f"[bench.linked_hosts] {reason}")
        try:
            self._build()
        except BaseException:
            self._tear_down()
            raise
        return self

    def start(self, host: int, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
        """Starts a process on a host, pinned to the host's core, with its output in a pipe."""
        process = subprocess.Popen(
            ["ip", "netns", "exec", self._name(host), *command],
            env={**environment, "GLOO_SOCKET_IFNAME": "eth0"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(process.pid, {cores[host % len(cores)]})  # `ip` has no threads yet, so all inherit it
        self._started.append(process)
        return process

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for process in self._started:
                _end_session(process)
        finally:
            self._tear_down()

    def _name(self, host: int) -> str:
        return f"{self._switch}-{host}"

    def _build(self) -> None:
        _run("ip", "netns", "add", self._switch)
        _run("ip", "-n", self._switch, "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", self._switch, "link", "set", "br0", "up")
        for host in range(self.count):
            name, port = self._name(host), f"port{host}"
            _run("ip", "netns", "add", name)
            link = ["link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", self._switch]
            _run("ip", "-n", name, *link)
            _run("ip", "-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            _run("ip", "-n", name, "link", "set", "lo", "up")
            _run("ip", "-n", name, "link", "set", "eth0", "up")
            _run("ip", "-n", self._switch, "link", "set", port, "master", "br0")
            _run("ip", "-n", self._switch, "link", "set", port, "up")
            if self._rate is not None:  # what leaves the host, and what leaves the switch towards it
                _shape(name, "eth0", self._rate)
                _shape(self._switch, port, self._rate)

    def _tear_down(self) -> None:
        for name in [*map(self._name, range(self.count)), self._switch]:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def _shape(namespace: str, device: str, rate: str) -> None:
    bucket = ["rate", rate, "burst", _BURSTS.get(rate, "512kb"), "latency", "100ms"]
    _run("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", *bucket)


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"[bench.linked_hosts] `{' '.join(command)}` failed: {done.stderr.strip()}")


def _end_session(process: subprocess.Popen[str]) -> None:
    """Kills a process with everything that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=STOP_S)
    if process.stdout:
        process.stdout.close()
