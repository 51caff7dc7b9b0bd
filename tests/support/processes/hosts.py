"""Hosts on one machine: network namespaces on a bridge, each with a name, an address and a loopback of its own.

The test's process is on the bridge, too. What is cut is silent, as a broken network is: packets go to a hardware
address that nobody has. All of it takes root's rights; `missing` says what is not there.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

_NAMESPACE, _NAME, _CLOCK = "TEST_HOST_NAMESPACE", "TEST_HOST_NAME", "TEST_HOST_CLOCK"
_NEW_NETWORK, _NEW_NAMES = 0x40000000, 0x04000000  # CLONE_NEWNET, CLONE_NEWUTS
_NAMESPACES = Path("/run/netns")
_NOBODY = "02:00:00:00:00:01"
_OFFSET = struct.Struct("<q")
_libc = ctypes.CDLL(None, use_errno=True)


def missing() -> str | None:
    """Why there can be no hosts here; None when there can."""
    if os.uname().sysname != "Linux":
        return "network namespaces are Linux's"
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need the command ip (Debian: iproute2)"
    tried = subprocess.run(["unshare", "--net", "--uts", "true"], capture_output=True, text=True, check=False)
    return f"network namespaces are not allowed here: {tried.stderr.strip()}" if tried.returncode else None


class Host:
    """One of a network. `environment` makes a `Forked` process run there, by its clock."""

    def __init__(self, namespace: str, name: str, address: str, clock: Path) -> None:
        self.name, self.address = name, address
        self._namespace = namespace
        clock.write_bytes(_OFFSET.pack(0))
        self._clock = clock
        self.environment = {_NAMESPACE: namespace, _NAME: name, _CLOCK: str(clock)}

    def jump(self, seconds: float) -> None:
        """Put its wall clock forward, or back, by so much."""
        with self._clock.open("r+b") as file:
            (offset_ns,) = _OFFSET.unpack(file.read())
            file.seek(0)
            file.write(_OFFSET.pack(offset_ns + int(seconds * 1e9)))

    def listener(self, port: int) -> socket.socket:
        """A socket of this process that listens at this port of the host's loopback."""
        with open("/proc/thread-self/ns/net") as own, (_NAMESPACES / self._namespace).open() as there:
            _enter(there.fileno(), _NEW_NETWORK)
            try:
                return socket.create_server(("127.0.0.1", port))
            finally:
                _enter(own.fileno(), _NEW_NETWORK)

    def cut(self, other: Host) -> None:
        """Nothing comes from either to the other any more, until `join`."""
        for one, two in ((self, other), (other, self)):
            one._ip("neigh", "replace", two.address, "lladdr", _NOBODY, "nud", "permanent", "dev", "eth0")

    def join(self, other: Host) -> None:
        """After `cut`."""
        for one, two in ((self, other), (other, self)):
            one._ip("neigh", "del", two.address, "dev", "eth0")

    def _ip(self, *words: str) -> None:
        _ip("-n", self._namespace, *words)


@contextlib.contextmanager
def network(root: Path) -> Iterator[Network]:
    """Hosts can be made within the block; all are gone after it."""
    _remove_leftovers()
    made = Network(root)
    try:
        yield made
    finally:
        made.close()


class Network:
    """Of one process; there is one at a time."""

    def __init__(self, root: Path) -> None:
        """Clocks are files in `root`."""
        pid = os.getpid()
        self._root, self._bridge, self._prefix = root, f"slb{pid}", f"10.{100 + pid % 100}.{pid // 100 % 250}"
        self._ends: dict[str, str] = {}  # by namespace
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("address", "add", f"{self._prefix}.254/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")

    def host(self, name: str) -> Host:
        """A new one, which reaches all others."""
        number = len(self._ends) + 1
        namespace, end, address = f"sl{os.getpid()}-{name}", f"sl{os.getpid()}{number:x}", f"{self._prefix}.{number}"
        _ip("netns", "add", namespace)
        self._ends[namespace] = end
        _ip("link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        _ip("link", "set", end, "master", self._bridge, "up")
        for words in (("address", "add", f"{address}/24", "dev", "eth0"), ("link", "set", "eth0", "up")):
            _ip("-n", namespace, *words)
        _ip("-n", namespace, "link", "set", "lo", "up")
        return Host(namespace, name, address, self._root / f"{name}.clock")

    def close(self) -> None:
        for namespace, end in self._ends.items():
            _ip("link", "delete", end)  # at once: Linux ends a namespace's links some time after the namespace
            _ip("netns", "delete", namespace)
        _ip("link", "delete", self._bridge)


def move_in() -> None:
    """What a forked process does first: it becomes one of the host that its environment names, if it does."""
    if (namespace := os.environ.get(_NAMESPACE)) is None:
        return
    with (_NAMESPACES / namespace).open() as there:
        _enter(there.fileno(), _NEW_NETWORK)
    if _libc.unshare(_NEW_NAMES):
        raise OSError(ctypes.get_errno(), "unshare")
    socket.sethostname(os.environ[_NAME])
    with open(os.environ[_CLOCK], "rb") as file:
        shown = mmap.mmap(file.fileno(), _OFFSET.size, prot=mmap.PROT_READ)
    real_ns = time.time_ns
    time.time_ns = lambda: real_ns() + int(_OFFSET.unpack_from(shown)[0])
    time.time = lambda: time.time_ns() / 1e9


def _enter(namespace: int, kind: int) -> None:
    """For this thread alone."""
    if _libc.setns(namespace, kind):
        raise OSError(ctypes.get_errno(), "setns")


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"


def _remove_leftovers() -> None:
    """Of processes that were killed."""
    for path in _NAMESPACES.glob("sl*-*"):
        pid = path.name.removeprefix("sl").partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            subprocess.run(["ip", "netns", "delete", path.name], check=False, capture_output=True)
            subprocess.run(["ip", "link", "delete", f"slb{pid}"], check=False, capture_output=True)
