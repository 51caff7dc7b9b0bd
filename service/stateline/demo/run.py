"""`stateline demo`: starts everything, loads, asks, checks, and goes on serving a replay of the rest.

Order: the directory and the port are claimed; topics are created; pipeline, worker and server start, and are loaded
meanwhile with all but the last departures; once every answer reflects them, a slice streams in while requests
are shown; what the stores answer then is checked against the oracle, for exactly the departures written so far.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType

from stateline.demo import oracle
from stateline.demo.catching_up import (
    await_pipeline,
    await_store,
    last_position,
    pipeline_read_so_far,
    read_so_far,
)
from stateline.demo.checks import Tally, check_keys, check_stores
from stateline.demo.client import Client
from stateline.demo.data import data_directory, departures
from stateline.demo.flights import app, by_airport
from stateline.demo.loader import TABLES, Feed, create_topics, load_tables
from stateline.demo.place import free_port, fresh_directory
from stateline.demo.screen import Screen
from stateline.demo.services import demo_settings, running_services
from stateline.demo.tour import Replay, Tour
from stateline.log import Log, open_log
from stateline.supervisor import Supervisor
from stateline_store import Position

DEFAULT_STATE_DIR = Path(".stateline/demo")

_KEPT_FOR_STREAMING = 20_000
_STREAMED_BEFORE_THE_CHECK = 2_000
_LOAD_CHUNK = 5_000
# Before the check as fast as one can still follow it; afterwards the rest lasts for several minutes.
_QUICK_PER_SECOND, _SLOW_PER_SECOND = 400, 50
_CATCH_UP_TIMEOUT_S = 300.0  # minutes more than it takes; a stuck process must not hang the demo for ever
_LOOK_INTERVAL_S = 0.5
_TICK_S = 0.05
_EPOCHS = f"{app.application_id}-delays-epochs"  # the pipeline's markers, see stateline.spark.sink.epoch_sink


def run_demo(
    *,
    once: bool = False,
    port: int = 8000,
    host: str = "127.0.0.1",
    state_dir: Path = DEFAULT_STATE_DIR,
    screen: Screen | None = None,
) -> int:
    """Run the demo on the main thread; 0 when every answer that was checked is right, else 1.

    Without `once` it serves until SIGINT or SIGTERM. Raises `ConfigurationError` when the data is not installed,
    the port is taken or `state_dir` is somebody else's; `LockedError` while another demo runs there.
    """
    screen = screen or Screen()
    port = free_port(host, port)
    data_directory()  # before anything is wiped or started
    with fresh_directory(state_dir), _sigterm_as_ctrl_c(), closing(open_log("embedded", state_dir)) as log:
        create_topics(log)
        screen.headline(f"Starting a Spark pipeline, a worker and a server on http://{host}:{port}")
        screen.say(f"  What they say goes to {state_dir / 'output.log'}.")
        with (
            running_services(app, demo_settings(state_dir, host, port), screen.say) as supervisor,
            Client(f"http://{host}:{port}") as client,
            closing(log.producer()) as producer,
        ):
            load_tables(log)
            feed = Feed(producer, departures())
            return _Demo(log, client, supervisor, feed, screen).run(once=once)


class _Demo:
    """One run, once everything has been started."""

    def __init__(self, log: Log, client: Client, supervisor: Supervisor, feed: Feed, screen: Screen) -> None:
        self._log = log
        self._client = client
        self._supervisor = supervisor
        self._feed = feed
        self._screen = screen
        self._tally = Tally()

    def run(self, *, once: bool) -> int:
        started = time.monotonic()
        self._load()
        tour = Tour(self._client, self._screen, self._tally)
        tour.of_everything_loaded()
        replay = Replay(self._feed, _QUICK_PER_SECOND)
        tour.both_isolation_levels(replay)
        tour.read_after_write(self._feed)
        self._stream(replay, _KEPT_FOR_STREAMING - _STREAMED_BEFORE_THE_CHECK)
        self._check()
        self._screen.say(f"  {time.monotonic() - started:.0f} s since the start")
        if not once:
            self._serve()
        return 1 if self._tally.wrong else 0

    def _load(self) -> None:
        """Everything but the rest that is kept; returns when all stores reflect it."""
        count = self._feed.waiting - _KEPT_FOR_STREAMING
        self._screen.headline(f"Loading {count:,} departures of {self._feed.waiting:,}")
        with self._screen.bars(dict.fromkeys(("written", "worker", "Spark"), count)) as bars:

            def look() -> None:
                self._supervisor.poll()
                bars.set("written", self._feed.sent)
                bars.set("worker", _records(read_so_far(self._client, "aircraft")))
                bars.set("Spark", _records(pipeline_read_so_far(self._log, _EPOCHS)))

            idle = _at_most_every(_LOOK_INTERVAL_S, look)
            while self._feed.sent < count:
                self._feed.send(min(_LOAD_CHUNK, count - self._feed.sent))
                idle()
            self._settle(idle)
            look()

    def _settle(self, idle: Callable[[], None]) -> dict[str, Position]:
        """Wait until every store reflects what was written; the Position of each that does."""
        bounds = {name: last_position(self._log, name) for name in TABLES} | {"aircraft": self._feed.position}
        for store, position in bounds.items():
            await_store(self._client, store, position, idle, timeout_s=_CATCH_UP_TIMEOUT_S)
        # The worker commits what it forwards no later than the table, so all of it is visible by now.
        bounds["airport_totals"] = last_position(self._log, by_airport.name)
        await_pipeline(self._log, _EPOCHS, self._feed.position, idle, timeout_s=_CATCH_UP_TIMEOUT_S)
        bounds["delays"] = last_position(self._log, "delays")
        for store in ("airport_totals", "delays"):
            await_store(self._client, store, bounds[store], idle, timeout_s=_CATCH_UP_TIMEOUT_S)
        return bounds

    def _stream(self, replay: Replay, keep: int) -> None:
        """Let departures out until only so many are left."""
        with self._screen.live_line() as show:
            while self._feed.waiting > keep:
                self._supervisor.poll()
                replay.tick()
                show(f"streaming: {self._feed.sent:,} departures written")
                time.sleep(_TICK_S)

    def _check(self) -> None:
        self._screen.headline(f"Checking against the CSV files: {self._feed.sent:,} departures")
        bounds = self._settle(_at_most_every(_LOOK_INTERVAL_S, self._supervisor.poll))
        expected = oracle.expected(self._feed.sent)
        positions = {store: position.to_json() for store, position in bounds.items()}
        check_stores(self._client, positions, expected, self._tally)
        for name in TABLES:
            check_keys(self._client, name, oracle.expected_table(name), {}, {}, self._tally)
        for wrong in self._tally.wrong[:10]:
            self._screen.say(f"  WRONG {wrong}")
        self._screen.say(f"  {self._tally.verdict}")

    def _serve(self) -> None:
        """Replay the rest, then go on answering, until Ctrl-C."""
        url = self._client.base_url
        self._screen.headline(f"Serving on {url} (try {url}/docs) until Ctrl-C, while the rest streams in")
        replay = Replay(self._feed, _SLOW_PER_SECOND)
        try:
            with self._screen.live_line() as show:
                while True:
                    self._supervisor.poll()
                    replay.tick()
                    show(f"{self._feed.sent:,} departures written, {self._feed.waiting:,} to come")
                    time.sleep(_TICK_S)
        except KeyboardInterrupt:
            self._screen.say("Stopping.")


def _records(position: Position) -> int:
    """How many departures a store at this Position has read: their topic has no gaps."""
    return sum(offset + 1 for _, offset in position)


def _at_most_every(interval_s: float, action: Callable[[], None]) -> Callable[[], None]:
    """The action, left out when it ran less than this ago."""
    last = -interval_s

    def limited() -> None:
        nonlocal last
        if time.monotonic() - last >= interval_s:
            action()
            last = time.monotonic()

    return limited


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    def interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
