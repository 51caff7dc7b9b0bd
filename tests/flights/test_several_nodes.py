"""The moving parts of the demo of several nodes: what is right at a Position, asking again, killing a node."""

from __future__ import annotations

import os
import sys
from itertools import count
from pathlib import Path

from flights import data, oracle
from flights.checks import Tally
from flights.loader import DEPARTURE_PARTITIONS
from flights.nodes.asking import Asking
from flights.nodes.cluster import Cluster, DemoNode
from flights.nodes.questions import Ledger, Question
from flights.nodes.run import MONTH
from flights.services import OutputFile
from stateline.client import Client
from stateline.processes.child import Child
from stateline.processes.supervisor import Supervisor
from stateline.serde.partitioner import home_partition
from stateline_store import NotReadyError, Position, TooManyRequestsError
from support.processes.query_server import wait_until
from support.run.patience import HANGING_S


def test_the_months_departures_are_those_of_the_oracle_in_the_same_order(departures: list[data.SourceRecord]) -> None:
    start_ms, end_ms = (int(at.timestamp()) * 1000 for at in MONTH)
    year = oracle.Year()
    skipped, in_it = year.between(*MONTH)
    written = [each.key.decode() for each in departures if start_ms <= each.timestamp_ms < end_ms]
    assert written == [tail for tail, _ in year.departures(skipped, in_it)]
    assert departures[skipped].timestamp_ms >= start_ms > departures[skipped - 1].timestamp_ms
    latest = oracle.expected(in_it, skipped, year).aircraft
    assert dict(year.departures(skipped, in_it)) == latest


def test_an_aircrafts_latest_departure_is_the_last_one_that_the_position_covers() -> None:
    written = [("N1", {"n": 0}), ("N2", {"n": 1}), ("N1", {"n": 2}), ("N1", {"n": 3})]
    ledger = Ledger(written)
    home, other = (home_partition(tail, DEPARTURE_PARTITIONS) for tail in (b"N1", b"N2"))
    mine = [number for number, (tail, _) in enumerate(written) if tail == "N1" or home == other]
    for offset, number in enumerate(mine):
        latest = max(each for each in (0, 2, 3, -1) if each <= number)
        expected = None if latest < 0 else {"n": latest}
        assert ledger.latest("N1", Position({"departures": {home: offset}})) == expected
    assert ledger.latest("N1", Position()) is None


def test_what_is_refused_is_asked_again_until_it_is_answered_and_nothing_else_waits_for_it() -> None:
    asked: list[int] = []
    numbers = count()

    def next_question() -> Question:
        number = next(numbers)
        left = [2] if number == 0 else []

        def ask(client: Client) -> None:
            asked.append(number)
            if number == 0 and left[0]:
                left[0] -= 1
                raise NotReadyError("in a moment")
            if number == 1:
                raise TooManyRequestsError("no more than so many")

        return ask

    tally = Tally()
    with Asking(lambda: ["http://127.0.0.1:9"], [(next_question, tally)]) as asking:
        wait_until(lambda: asked.count(0) == 3, HANGING_S)
    assert asking.refused == 2
    assert asking.longest_wait_s > 0  # from when it was asked first; what is refused is no answer
    times = [at for at, number in enumerate(asked) if number == 0]
    assert times[1] - times[0] > 2  # others came between
    assert [wrong.split(":")[0] for wrong in tally.wrong] == ["a question"]
    assert "1 wrong" in asking.verdict([tally])


def test_a_node_that_is_killed_has_no_process_any_more_and_is_not_started_again(tmp_path: Path) -> None:
    waiting = (sys.executable, "-c", "import time; time.sleep(3600)")
    output = OutputFile(tmp_path / "output.log", lambda line: None)
    with (
        Supervisor([Child("node-1/server", waiting)], emit=output) as one,
        Supervisor([Child("node-2/server", waiting)], emit=output) as two,
        Cluster(tmp_path, "127.0.0.1", [], output) as cluster,
    ):
        cluster.nodes = (DemoNode("node-1", "http://one", one), DemoNode("node-2", "http://two", two))
        (pid,) = two.processes.values()
        cluster.kill("node-2")
        assert os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT) is not None
        cluster.poll()
        assert [node.name for node in cluster.nodes] == ["node-1"]
        assert one.processes["node-1/server"]
    output.close()
