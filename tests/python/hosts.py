# SPDX-License-Identifier: Apache-2.0
"""Separate hosts on one machine: network namespaces joined by a bridge, each with an address of its own. Needs root."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from types import TracebackType


def can_make_hosts() -> bool:
    return os.geteuid() == 0 and shutil.which("ip") is not None and _ip("netns", "list", check=False) == 0


class Hosts:
    """``with Hosts(4) as hosts: hosts.start(rank, command)``: N namespaces that see one another, and nothing else."""

    def __init__(self, count: int):
        self.count = count
        self._switch = f"octavo{os.getpid()}"
        self._started: list[subprocess.Popen[str]] = []

    def address(self, host: int) -> str:
        return f"10.77.0.{host + 1}"

    def __enter__(self) -> "Hosts":
        try:
            self._build()
        except BaseException:
            self._tear_down()
            raise
        return self

    def start(self, host: int, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            ["ip", "netns", "exec", self._name(host), *command],
            env={**environment, "GLOO_SOCKET_IFNAME": "eth0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._started:
            process.kill()
            process.wait()
        self._tear_down()

    def _name(self, host: int) -> str:
        return f"{self._switch}-{host}"

    def _build(self) -> None:
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "br0", "up")
        for host in range(self.count):
            name, port = self._name(host), f"port{host}"
            _ip("netns", "add", name)
            _ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", self._switch)
            _ip("-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", self._switch, "link", "set", port, "master", "br0")
            _ip("-n", self._switch, "link", "set", port, "up")

    def _tear_down(self) -> None:
        for name in [*map(self._name, range(self.count)), self._switch]:
            _ip("netns", "delete", name, check=False)


def _ip(*arguments: str, check: bool = True) -> int:
    return subprocess.run(["ip", *arguments], check=check, capture_output=True).returncode
