"""`make demo NODES=3`: starts a broker and nodes, loads, asks any node, kills one, adds one, and checks.

Order: the directory and the ports are claimed; a broker and the nodes start, and are loaded with most of a month; then
the rest streams in, while questions are asked of nodes at random: each answer is compared with what plain Python makes
of the departures up to its Position. Meanwhile one node is killed, and another one joins. What the stores answer in the
end is checked as the demo of one machine does it.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import httpx

from flights import oracle
from flights.catching_up import await_all_stores
from flights.checks import Tally, check_keys, check_stores
from flights.data import data_directory, departures
from flights.loader import TABLES, Feed, create_topics, load_tables
from flights.loading import LOOK_INTERVAL_S, at_most_every, load
from flights.nodes.asking import AnyNode, Asking
from flights.nodes.cluster import Cluster
from flights.nodes.coming_and_going import KEPT_FOR_SERVING, ComingAndGoing
from flights.nodes.questions import Ledger, Questions, Tables
from flights.place import free_port, fresh_directory
from flights.run import DEFAULT_STATE_DIR, sigterm_as_ctrl_c
from flights.screen import Screen
from flights.services import OutputFile
from flights.shown import LastRequest
from flights.time_checks import check_times_by_query
from flights.tour import Replay
from stateline.client import NEVER, Client
from stateline.log import Log, open_log
from stateline_store import Position
from support import CACHE
from support.kafka.recipe import KAFKA_VERSION

MONTH = datetime(2013, 10, 1, tzinfo=UTC), datetime(2013, 11, 1, tzinfo=UTC)
MOST_NODES = 9

_HOST = "127.0.0.1"
_KEPT_FOR_STREAMING = 6_000
_SLOW_PER_SECOND = 20
_ASKERS = 3
_TICK_S = 0.05
_TIMEOUT_S = 90.0


def run_nodes_demo(
    count: int,
    *,
    once: bool = False,
    port: int = 8000,
    state_dir: Path = DEFAULT_STATE_DIR,
    screen: Screen | None = None,
) -> int:
    """Run the demo of so many nodes on the main thread; 0 when every answer that was checked is right, else 1.

    Their servers are at `port` and those behind it, one more than there are nodes at first; 0 takes free ones. Raises
    as `run_demo`, and `BrokerUnavailableError` or `JarsUnavailableError` without Java, Maven or what it fetches.
    """
    screen = screen or Screen()
    logging.getLogger("stateline.kafka").setLevel(logging.ERROR)  # a broker that has just started says "in a moment"
    ports = [free_port(_HOST, port and port + number) for number in range(count + 1)]
    data_directory()  # before anything is wiped or started
    started = time.monotonic()
    with fresh_directory(state_dir), sigterm_as_ctrl_c():
        output_file = state_dir / "output.log"
        output = OutputFile(output_file, screen.say)
        with closing(output), Cluster(state_dir, _HOST, ports, output) as cluster:
            _start(cluster, count, output_file, screen)
            with closing(open_log(cluster.bootstrap_servers, state_dir)) as log, closing(log.producer()) as producer:
                create_topics(log)
                for _ in range(count):
                    cluster.add()
                load_tables(log)
                start_ms, end_ms = (int(at.timestamp()) * 1000 for at in MONTH)
                feed = Feed(producer, [each for each in departures() if start_ms <= each.timestamp_ms < end_ms])
                demo = _NodesDemo(cluster, log, feed, screen)
                with closing(demo):
                    return demo.run(started, once=once)


def _start(cluster: Cluster, count: int, output: Path, screen: Screen) -> None:
    screen.headline(f"Starting a Kafka broker and {count} nodes, each with a directory, a worker and a server")
    if not (CACHE / f"kafka-{KAFKA_VERSION}").is_dir():
        screen.say("  Maven fetches the broker first, 130 MB, once.")
    cluster.start_broker()
    screen.say(f"  The broker is at {cluster.bootstrap_servers}. What all of them say goes to {output}.")


class _NodesDemo:
    """One run, once everything has been started."""

    def __init__(self, cluster: Cluster, log: Log, feed: Feed, screen: Screen) -> None:
        self._cluster, self._log, self._feed, self._screen = cluster, log, feed, screen
        self._last = LastRequest()
        # A proxy would not reach 127.0.0.1.
        self._http = httpx.Client(
            transport=AnyNode(self._urls), trust_env=False, timeout=_TIMEOUT_S, event_hooks={"response": [self._last]}
        )
        self._client = Client("http://any-node", retries=NEVER, timeout_s=_TIMEOUT_S, http=self._http)
        self._poll = at_most_every(LOOK_INTERVAL_S, cluster.poll)
        self._tallies: list[Tally] = []
        self._loaded: dict[str, Position] = {}
        # What is right, of the month and at each moment of it; the worker's code has no part in it.
        self._year = oracle.Year()
        self._skipped, _ = self._year.between(*MONTH)
        self._tables = {name: oracle.expected_table(name) for name in TABLES}

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def run(self, started: float, *, once: bool) -> int:
        self._load()
        self._tour()
        self._ask_while_nodes_come_and_go()
        self._check()
        self._screen.say(f"  {time.monotonic() - started:.0f} s since the start")
        if not once:
            self._serve()
        return 1 if any(tally.wrong for tally in self._tallies) else 0

    def _load(self) -> None:
        count = self._feed.waiting - _KEPT_FOR_STREAMING - KEPT_FOR_SERVING
        self._screen.headline(f"Loading {count:,} departures of {self._feed.waiting:,}, of October")
        poll = self._cluster.poll
        self._loaded = load(self._feed, count, self._client, self._log, self._screen, poll, workers="workers")

    def _tour(self) -> None:
        """A few requests to look at, each at any node; which of them has the key's partition is all the same."""
        self._screen.headline("Any node answers any question")
        afternoon = (datetime(2013, 10, 7, hour, tzinfo=UTC) for hour in (20, 23))
        start, end = (str(int(at.timestamp()) * 1000) for at in afternoon)
        for what, path, parameters in (
            ("the latest departure of an aircraft", "aircraft/keys/N725MQ", {}),
            ("a range over partitions of several nodes", "aircraft/range", {"prefix": "N72", "limit": "2"}),
            ("what Spark computed, on one of them", "delays/range", {"prefix": "JFK|B6|2013-10-07T", "limit": "2"}),
            ("windows", "delay_windows/keys/JFK/windows", {"from": start, "to": end}),
        ):
            answer = self._http.get(f"http://any-node/v1/stores/{path}", params=parameters)
            self._screen.say(f"# {what}")
            self._screen.request(self._last.curl, self._last.answer)
            self._tally().check(f"status of {self._last.curl}", answer.status_code, 200)

    def _ask_while_nodes_come_and_go(self) -> None:
        ledger = Ledger(self._year.departures(self._skipped, self._feed.sent + self._feed.waiting))
        self._screen.headline("Asking nodes at random, while departures stream in and nodes come and go")
        tallies = [self._tally() for _ in range(_ASKERS)]
        tables = Tables(self._tables, self._loaded)
        questions = [Questions(ledger, tables, lambda: self._feed.position, tally) for tally in tallies]
        askers = [(each.next, tally) for each, tally in zip(questions, tallies, strict=True)]
        with Asking(self._urls, askers) as asking, self._screen.live_line() as show:
            ComingAndGoing(self._cluster, self._feed, asking, self._owners, self._screen, show).run()
        self._say_wrong(tallies)
        self._screen.say(f"  {asking.verdict(tallies)}")
        self._screen.say(
            f"  The answers went on: the longest pause between two was {asking.longest_pause_s:.1f} s. A question whose"
            f" owner was gone, or was just changing, waited {asking.longest_wait_s:.1f} s at most."
        )

    def _owners(self) -> Counter[str]:
        """How many tasks each living node owns, as one of them says; none when it does not answer."""
        living = {node.name for node in self._cluster.nodes}
        try:
            told = self._http.get("http://any-node/v1/nodes").json()["nodes"]
        except httpx.HTTPError:
            return Counter()
        tasks = {name: told[name]["tasks"].values() for name in living & told.keys()}
        return Counter(name for name, of in tasks.items() for task in of if task["role"] == "active")

    def _check(self) -> None:
        count = self._feed.sent
        self._screen.headline(f"Checking against the CSV files, at any node: {count:,} departures")
        tally = self._tally()
        bounds = await_all_stores(self._client, self._log, self._feed.position, self._poll)
        with self._screen.live_line() as show:
            show("reading the CSV files")
            expected, weather = oracle.expected(count, self._skipped, self._year), oracle.expected_weather()
            show("asking for every key")
            check_stores(self._client, bounds, expected, tally)
            self._poll()
            show(f"asking for windows, sessions and versions, after {tally.checked:,} answers")
            check_times_by_query(self._client, bounds, expected, weather, tally)
            for name, values in self._tables.items():
                check_keys(self._client, name, values, {}, {}, tally)
        self._say_wrong([tally])
        self._screen.say(f"  {tally.verdict}")

    def _say_wrong(self, tallies: list[Tally]) -> None:
        for wrong in [wrong for tally in tallies for wrong in tally.wrong][:10]:
            self._screen.say(f"  WRONG {wrong}")

    def _serve(self) -> None:
        """Stream the rest, and go on answering, until Ctrl-C."""
        urls = ", ".join(self._urls())
        self._screen.headline(f"Serving on {urls} until Ctrl-C, while the rest streams in")
        replay = Replay(self._feed, _SLOW_PER_SECOND)
        try:
            with self._screen.live_line() as show:
                while True:
                    self._poll()
                    replay.tick()
                    show(f"{self._feed.sent:,} departures written, {self._feed.waiting:,} to come")
                    time.sleep(_TICK_S)
        except KeyboardInterrupt:
            self._screen.say("Stopping.")

    def _urls(self) -> list[str]:
        return [node.url for node in self._cluster.nodes]

    def _tally(self) -> Tally:
        self._tallies.append(tally := Tally())
        return tally
