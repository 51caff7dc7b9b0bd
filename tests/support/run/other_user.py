"""Processes of another user, which only root can start."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

NOBODY = 65534
"""Its id."""
_LISTEN = """
import os, socket, sys
os.setuid(65534)
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(sys.argv[1].replace("@", "\\0"))
    listener.listen()
    print("ready", flush=True)
    sys.stdin.read()
"""
_CONNECT = """
import os, socket, sys
os.setuid(65534)
with socket.socket(socket.AF_UNIX) as client:
    client.settimeout(60)
    client.connect(sys.argv[1])
    print("ready", flush=True)
    print(client.recv(1), flush=True)
"""


@contextmanager
def listens_at(path: Path | str) -> Iterator[None]:
    """While it runs a process of another user listens at this socket; one that begins with ``@`` is abstract."""
    with _started(_LISTEN, path):
        yield


@contextmanager
def connects_to(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of another user that has connected to this socket; it prints what it reads first."""
    with _started(_CONNECT, path) as process:
        yield process


@contextmanager
def open_to_all(folder: Path) -> Iterator[None]:
    """While it runs every user can reach this folder, and write there."""
    with ExitStack() as modes:
        for each in folder.parents:
            mode = stat.S_IMODE(each.stat().st_mode)
            if not mode & 0o001:
                modes.callback(each.chmod, mode)
                each.chmod(mode | 0o011)
        folder.chmod(0o777)
        yield


@contextmanager
def _started(script: str, path: Path | str) -> Iterator[subprocess.Popen[bytes]]:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    command = [sys.executable, "-c", script, path]
    with subprocess.Popen(command, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
