"""`make demo`: starts everything, loads, asks, checks, and goes on serving a replay of the rest.

Order: the directory and the port are claimed; topics are created; pipelines, worker and server start, and are loaded
meanwhile with all but the last departures; once every answer reflects them, a slice streams in while requests
are shown; what the stores answer then, and what a Spark job makes of a snapshot of them, is checked against the oracle,
for exactly the departures written so far.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import zip_longest
from pathlib import Path
from types import FrameType
from typing import Any

import httpx

from flights import oracle
from flights.application import app
from flights.catching_up import await_all_stores
from flights.checks import Tally, check_keys, check_stores
from flights.data import data_directory, departures
from flights.loader import TABLES, Feed, create_topics, load_tables
from flights.loading import LOOK_INTERVAL_S, at_most_every, load
from flights.place import free_port, fresh_directory
from flights.ranking_process import NEEDED_BYTES, RankingProcess
from flights.screen import Screen, ranking_line
from flights.services import Services, demo_settings, running_services
from flights.time_checks import check_times
from flights.tour import Replay, Tour
from stateline.client import NEVER, Client
from stateline.log import Log, open_log
from stateline.processes.machine import free_bytes

DEFAULT_STATE_DIR = Path(".stateline/demo")

_KEPT_FOR_STREAMING = 20_000
_STREAMED_BEFORE_THE_CHECK = 2_000
# Before the check as fast as one can still follow it; afterwards the rest lasts for several minutes.
_QUICK_PER_SECOND, _SLOW_PER_SECOND = 400, 50
_TICK_S = 0.05
_TIMEOUT_S = 90.0


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
    with fresh_directory(state_dir), sigterm_as_ctrl_c(), closing(open_log("embedded", state_dir)) as log:
        create_topics(log)
        url = f"http://{host}:{port}"
        screen.headline(f"Starting Spark pipelines, a worker and a server on {url}")
        screen.say(f"  What they say goes to {state_dir / 'output.log'}.")
        with (
            running_services(app, demo_settings(state_dir, host, port), screen.say) as services,
            httpx.Client(trust_env=False) as http,  # a proxy would not reach 127.0.0.1
            Client(url, retries=NEVER, timeout_s=_TIMEOUT_S, http=http) as client,
            closing(log.producer()) as producer,
        ):
            load_tables(log)
            feed = Feed(producer, departures())
            return _Demo(url, log, client, services, feed, screen, state_dir).run(once=once)


class _Demo:
    """One run, once everything has been started."""

    def __init__(
        self,
        url: str,
        log: Log,
        client: Client,
        services: Services,
        feed: Feed,
        screen: Screen,
        directory: Path,
    ) -> None:
        self._url = url
        self._log = log
        self._client = client
        self._services = services
        self._feed = feed
        self._screen = screen
        self._directory = directory
        self._tally = Tally()

    def run(self, *, once: bool) -> int:
        started = time.monotonic()
        self._load()
        with closing(Tour(self._url, self._screen, self._tally)) as tour:
            tour.of_everything_loaded()
            replay = Replay(self._feed, _QUICK_PER_SECOND)
            with self._tally.asking("both isolation levels"):
                tour.both_isolation_levels(replay)
            with self._tally.asking("the read after the write"):
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
        poll = self._services.poll
        load(self._feed, count, self._client, self._log, self._screen, poll, workers="worker")

    def _stream(self, replay: Replay, keep: int) -> None:
        """Let departures out until only so many are left."""
        with self._screen.live_line() as show:
            while self._feed.waiting > keep:
                self._services.poll()
                replay.tick()
                show(f"streaming: {self._feed.sent:,} departures written")
                time.sleep(_TICK_S)

    def _check(self) -> None:
        self._screen.headline(f"Checking against the CSV files: {self._feed.sent:,} departures")
        poll = at_most_every(LOOK_INTERVAL_S, self._services.poll)
        bounds = await_all_stores(self._client, self._log, self._feed.position, poll)
        with (
            self._room_for_spark() as poll,
            self._screen.live_line() as show,
            RankingProcess(self._url, self._directory) as job,
        ):
            show("reading the CSV files, while a Spark job reads a snapshot")
            expected, weather = oracle.expected(self._feed.sent), oracle.expected_weather()
            show("asking for every key")
            check_stores(self._client, bounds, expected, self._tally)
            poll()
            show(f"asking for windows, sessions and versions, after {self._tally.checked:,} answers")
            check_times(self._client, bounds, expected, weather, self._tally)
            for name in TABLES:
                check_keys(self._client, name, oracle.expected_table(name), {}, {}, self._tally)
            show(f"waiting for the Spark job, after {self._tally.checked:,} answers")
            ranked = job.rows(poll)
        self._show_ranking(ranked)
        for found, right in zip_longest(ranked, expected.ranking):
            self._tally.check("ranking", found, right)
        for wrong in self._tally.wrong[:10]:
            self._screen.say(f"  WRONG {wrong}")
        self._screen.say(f"  {self._tally.verdict}")

    @contextmanager
    def _room_for_spark(self) -> Iterator[Callable[[], None]]:
        """Memory for a second Spark, the pipelines' stopped meanwhile if need be; what to call now and then."""
        free = free_bytes()
        if free is None or free >= NEEDED_BYTES:
            yield at_most_every(LOOK_INTERVAL_S, self._services.poll)
            return
        self._screen.say(f"  {free >> 20:,} MB of memory are free: the pipelines stop while a Spark job runs.")
        with self._services.without_pipelines():
            yield lambda: None

    def _show_ranking(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._screen.say("# a Spark job over a snapshot of the running server: where one waits longest")
        self._screen.say(f"$ python -m flights.ranking {self._url}")
        for place, row in enumerate(rows, 1):
            self._screen.say(f"  {ranking_line(place, row)}")

    def _serve(self) -> None:
        """Replay the rest, then go on answering, until Ctrl-C."""
        url = self._url
        self._screen.headline(f"Serving until Ctrl-C, while the rest streams in: console {url}, API {url}/docs")
        replay = Replay(self._feed, _SLOW_PER_SECOND)
        try:
            with self._screen.live_line() as show:
                while True:
                    self._services.poll()
                    replay.tick()
                    show(f"{self._feed.sent:,} departures written, {self._feed.waiting:,} to come")
                    time.sleep(_TICK_S)
        except KeyboardInterrupt:
            self._screen.say("Stopping.")


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """Within the block SIGTERM raises KeyboardInterrupt, as SIGINT does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
