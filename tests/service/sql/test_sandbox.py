"""A query process has no files, no network and no more memory than its budget, on every platform that can."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROBE = """
import os, socket, sys
from stateline.sql import sandbox
in_namespaces = {namespaces} and sandbox.leave_namespaces()
held = sandbox.confine(1 << 26, in_namespaces=in_namespaces)
def fails(call):
    try:
        call()
    except (OSError, MemoryError):
        return True
    return False
print(held, all(map(fails, (
    lambda: open("/etc/passwd"), lambda: socket.socket(), lambda: os.open("/tmp/x", os.O_CREAT | os.O_WRONLY),
    lambda: os.mkdir("/tmp/made-by-a-query"), lambda: os.listdir("/etc"), lambda: bytearray(1 << 27),
))))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has Landlock and namespaces")
@pytest.mark.parametrize("namespaces", [True, False])
def test_a_confined_process_opens_nothing_and_makes_nothing(namespaces: bool) -> None:
    code = PROBE.format(namespaces=namespaces)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith(" True\n"), done.stdout
    assert "memory" in done.stdout
