"""wrk on a server of this machine: keys at random over connections that are kept."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

CONNECTIONS = 32

_LUA = """
math.randomseed(os.time())
request = function()
  return wrk.format("GET", string.format("{path}", math.random(0, {keys} - 1)))
end
"""
_UNITS_MS = {"us": 0.001, "ms": 1.0, "s": 1000.0}


@dataclass(frozen=True)
class Load:
    """What wrk saw: requests per second, and how long answers took, in ms."""

    rate: float
    median_ms: float
    p99_ms: float

    def __str__(self) -> str:
        return f"{self.rate:,.0f}/s, p50 {self.median_ms:.2f} ms, p99 {self.p99_ms:.2f} ms"


def load(port: int, path: str, keys: int, seconds: float, script: Path) -> Load:
    """Ask for keys at random as fast as answers come; `path` is a format that takes the number of a key.

    `script` is a file that may be overwritten. Raises `RuntimeError` when an answer was no 2xx or was not had.
    """
    script.write_text(_LUA.replace("{path}", path).replace("{keys}", str(keys)))
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds:g}s", "--latency", "--timeout", "30s", "-s", str(script)]
    done = subprocess.run([*command, f"http://127.0.0.1:{port}"], capture_output=True, text=True, check=True)
    if "Non-2xx" in done.stdout or "Socket errors" in done.stdout:
        raise RuntimeError(done.stdout)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)
    assert rate is not None, done.stdout
    return Load(float(rate[1]), _share(done.stdout, "50%"), _share(done.stdout, "99%"))


def _share(said: str, share: str) -> float:
    found = re.search(rf"^\s+{share}\s+([\d.]+)(us|ms|s)$", said, re.MULTILINE)
    assert found is not None, said
    return float(found[1]) * _UNITS_MS[found[2]]
