"""Runs the Spark job `flights.ranking` in a process of its own, so that its JVM is gone with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson

from stateline_store import NotReadyError

NEEDED_BYTES = 1_500_000_000  # a JVM with a heap of 512 MB, and the Python processes that read
_TIMEOUT_S = 300.0  # minutes more than it takes
_LOOK_INTERVAL_S = 0.1


class RankingProcess:
    """The job, started. Leaving the `with` block ends it, its JVM too."""

    def __init__(self, url: str, directory: Path) -> None:
        self._said, self._rows = directory / "ranking.log", directory / "ranking.jsonl"
        command = [sys.executable, "-m", "flights.ranking", url, "--json"]
        with self._rows.open("wb") as out, self._said.open("wb") as said:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=said, start_new_session=True
            )

    def __enter__(self) -> RankingProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def rows(self, idle: Callable[[], None]) -> list[dict[str, Any]]:
        """Wait until the job has ended, calling `idle` meanwhile; what it found.

        Raises `NotReadyError` when it fails or takes minutes.
        """
        deadline = time.monotonic() + _TIMEOUT_S
        while self._process.poll() is None and time.monotonic() < deadline:
            idle()
            time.sleep(_LOOK_INTERVAL_S)
        if self._process.returncode != 0:
            raise NotReadyError(f"The Spark job gave no ranking: what it said is in {self._said}.")
        return [orjson.loads(line) for line in self._rows.read_bytes().splitlines()]
