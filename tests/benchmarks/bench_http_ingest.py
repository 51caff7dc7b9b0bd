"""Point reads over HTTP while the worker ingests as fast as it can. Committed ones: p99 at most twice that of when the
worker stands still. Uncommitted ones: p99 at most 10 ms.

One client reads keys at random, one after the other, over a connection that it keeps. The worker works off a backlog
and commits every 100 ms; in turns with that it stands still (SIGSTOP). Measured on all cores; with a core for the
server alone; and with one for server and client, where the client need not wait for a core that the worker is using.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from array import array
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from cores import CORES, awake, go_on, pin, stand_still
from figures import at_most, latencies, percentile
from processes import Table, process, server_process, until, until_ready, worker
from topic import Group, loaded_broker, produce

KEYS = 200_000
BACKLOG = 5_000_000
ROUNDS = 3
SECONDS = 1.5

FREE, SERVER, BOTH = "all cores", "a core for the server", "a core for server and client"
LAYOUTS = (FREE, SERVER, BOTH) if len(CORES) > 1 else (FREE,)

Window = tuple[float, float]


@dataclass(frozen=True)
class Scene:
    """What runs: server and worker (standing still unless told), and the worker's group."""

    port: int
    server: int
    worker: int
    group: Group
    output: Path

    def committed(self, layout: str) -> tuple[list[float], list[float]]:
        """Seconds of each committed read (while the worker ingests, while it stands still)."""
        with self._client(layout, "read_committed"):
            idle = self._window()
            with awake([self.worker]):
                time.sleep(0.3)  # the first commits
                busy = self._window()
        return self._taken(busy), self._taken(idle)

    def uncommitted(self, layout: str) -> list[float]:
        """Seconds of each uncommitted read while the worker ingests."""
        with awake([self.worker]):
            until_ready(self.port)  # the worker answers again
            with self._client(layout, "read_uncommitted"):
                busy = self._window()
        return self._taken(busy)

    def _client(self, layout: str, level: str) -> ExitStack:
        """A client that reads, placed on its cores as all others are."""
        pin([os.getpid()], CORES if layout == FREE else CORES[1:])
        if layout != FREE:
            pin([self.server], CORES[:1])
        self.output.unlink(missing_ok=True)
        with ExitStack() as stack:
            command = ["point_reads.py", str(self.port), str(KEYS), str(self.output), level]
            child = stack.enter_context(process(command, self.output.with_suffix(".txt")))
            if layout == BOTH:
                pin([child.pid], CORES[:1])
            until(self.output.exists, "the client has read once", 0.01)
            return stack.pop_all()

    def _window(self) -> Window:
        begin = time.monotonic()
        time.sleep(SECONDS)
        return begin, time.monotonic()

    def _taken(self, window: Window) -> list[float]:
        taken = array("d", self.output.read_bytes())
        # The last one may end after the window: without it those that take long would be too few.
        pairs = zip(taken[0::2], taken[1::2], strict=True)
        found = [seconds for begin, seconds in pairs if window[0] <= begin <= window[1]]
        if not found:
            raise RuntimeError(f"No read began within {SECONDS:g} s: other programs use this machine.")
        return found


def measure(scene: Scene, layout: str, total: int) -> None:
    """Measure and print the figures of one layout. Raises `RuntimeError` when all `total` records were worked off."""
    ratios, uncommitted = [], []
    for _ in range(ROUNDS):
        busy, idle = scene.committed(layout)
        ratios.append(percentile(busy, 0.99) / percentile(idle, 0.99))
        print(f"  {layout}: committed, ingesting {told(busy)}; standing still {told(idle)}", flush=True)
        taken = scene.uncommitted(layout)
        uncommitted.append(percentile(taken, 0.99) * 1000)
        print(f"  {layout}: uncommitted, ingesting {told(taken)}", flush=True)
        if scene.group.committed() >= total:
            raise RuntimeError("The worker was through with the backlog: BACKLOG has to be larger.")
    at_most(f"{layout}: p99 of committed reads under ingest ÷ idle", statistics.median(ratios), 2)
    at_most(f"{layout}: p99 of uncommitted reads under ingest", statistics.median(uncommitted), 10, " ms")


def told(seconds: list[float]) -> str:
    """As printed. The longest too: who reads one after the other meets what holds up the server only once each time."""
    return f"{latencies(seconds)}, longest {max(seconds) * 1000:.1f} ms"


def main() -> None:
    with ExitStack() as stack:
        servers = stack.enter_context(loaded_broker(KEYS, KEYS))
        state_dir = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        group = stack.enter_context(closing(Group(servers)))
        keeper = stack.enter_context(worker(servers, state_dir, {"session.timeout.ms": 120_000}))
        port, child = stack.enter_context(server_process(servers, state_dir))
        until_ready(port)
        with closing(Table(state_dir)) as table:
            table.until_all(group, KEYS)
        stack.callback(go_on, [keeper.pid])
        stand_still([keeper.pid])
        scene = Scene(port, child.pid, keeper.pid, group, state_dir / "reads")
        for number, layout in enumerate(LAYOUTS, 1):
            pin([os.getpid()], CORES)
            produce(servers, BACKLOG, KEYS)
            measure(scene, layout, KEYS + number * BACKLOG)


if __name__ == "__main__":
    main()
