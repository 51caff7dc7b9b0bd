"""The middle of the demo: departures stream in, questions are asked, a node is killed, and another one joins."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from flights.loader import Feed
from flights.nodes.asking import Asking
from flights.nodes.cluster import Cluster
from flights.screen import Screen
from flights.tour import Replay
from stateline_store import NotReadyError

KEPT_FOR_SERVING = 1_000
_PER_SECOND = 120
_ALL_THERE_S, _ONE_KILLED_S, _ONE_ADDED_S = 8.0, 10.0, 12.0  # how long each lasts, at least
_SETTLED_TIMEOUT_S = 90.0
_LOOK_INTERVAL_S = 0.5
_TICK_S = 0.05


class ComingAndGoing:
    """One run of it, on the thread that owns the cluster and the feed."""

    def __init__(
        self,
        cluster: Cluster,
        feed: Feed,
        asking: Asking,
        owners: Callable[[], Counter[str]],
        screen: Screen,
        show: Callable[[str], None],
    ) -> None:
        """`owners` tells how many tasks each living node owns; `show` changes the line that tells how it goes."""
        self._cluster, self._feed, self._asking = cluster, feed, asking
        self._owners = owners
        self._screen, self._show = screen, show
        self._replay = Replay(feed, _PER_SECOND)

    def run(self) -> None:
        """Returns when every task has an owner again."""
        tasks = self._owners().total()
        self._stream(_ALL_THERE_S)
        killed = self._cluster.nodes[1].name
        self._cluster.kill(killed)
        self._screen.say(f"# kill -9 of {killed}: its worker and its server")
        self._await(lambda owners: owners.total() >= tasks)
        self._stream(_ONE_KILLED_S)
        added = self._cluster.add().name
        self._screen.say(f"# {added} is started, with an empty directory")
        self._await(lambda owners: owners.total() >= tasks and owners[added] > 0)
        self._stream(_ONE_ADDED_S)

    def _await(self, settled: Callable[[Counter[str]], bool]) -> None:
        began = time.monotonic()
        while not settled(owners := self._owners()):
            if time.monotonic() - began > _SETTLED_TIMEOUT_S:
                raise NotReadyError(f"The tasks have no owners after {_SETTLED_TIMEOUT_S:g} s: {dict(owners)}.")
            self._stream(_LOOK_INTERVAL_S)
        who = ", ".join(f"{number} at {name}" for name, number in sorted(owners.items()))
        self._screen.say(f"  After {time.monotonic() - began:.0f} s every task has an owner: {who}.")

    def _stream(self, for_s: float) -> None:
        """Let departures out for so long, but not those that are kept for the end."""
        until = time.monotonic() + for_s
        while time.monotonic() < until:
            self._cluster.poll()
            if self._feed.waiting > KEPT_FOR_SERVING + _PER_SECOND:
                self._replay.tick()
            self._show(f"{self._feed.sent:,} departures written, {self._asking.answered:,} questions answered")
            time.sleep(_TICK_S)
