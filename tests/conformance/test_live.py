"""Of the same input our stores answer what Kafka Streams' do, and leave the same changelogs, under both guarantees."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from conformance.live import Sides, both_sides, difference, difference_of_stores
from conformance.live_app import NOTED, STORES
from conformance.live_driver import driver_of, rows_in
from conformance.live_input import PARTITIONS, RECORDS, Input, input_of, write_input
from stateline.deployment.topics import other_settings
from stateline.log.kafka import KafkaLog
from stateline.testing import TestDriver
from support.kafka.java_streams import PEERS, class_path
from support.kafka.kafka_broker import needed
from support.kafka.shared_broker import SharedBroker
from support.processes.running_worker import eventually, read_all
from support.run.length import long_only

TABLES = ("table", "versioned")  # their input is their changelog

pytestmark = long_only(
    "test_isolation.py asks both on a broker, and test_golden_operators.py has the changelogs of operators"
)


@pytest.fixture(scope="module")
def given(kafka_broker: SharedBroker) -> Input:
    needed(class_path)
    with closing(KafkaLog(kafka_broker.bootstrap_servers)) as log:
        return write_input(log, "live-")


@pytest.fixture(scope="module", params=["at_least_once", "exactly_once_v2"])
def guarantee(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=[*PEERS])
def sides(
    kafka_broker: SharedBroker,
    given: Input,
    guarantee: str,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Sides]:
    directory = tmp_path_factory.mktemp("live")
    with both_sides(kafka_broker.bootstrap_servers, given, guarantee, request.param, directory) as made:
        newest = {r.key: r.value for r in read_all(made.log, f"{given.prefix}left", PARTITIONS) if r.key is not None}
        # The groups come through a topic, and so behind the input.
        eventually(lambda: counted(made) == [sum(map(bool, newest.values()))] * 4, "both have counted the groups")
        made.compacted.clear()
        yield made


def counted(sides: Sides) -> list[int]:
    """How many rows all groups have: in both changelogs, and in both stores."""
    sides.compacted.clear()
    changelogs = [sum(int.from_bytes(row[0]) for row in rows.values()) for rows in sides.changelogs("groupcount")]
    stores = (sides.rows_of_java("groupcount"), sides.our_rows("groupcount"))
    return [*changelogs, *(sum(row[0] for row in rows.values()) for rows in stores)]


@pytest.fixture(scope="module")
def driven(sides: Sides) -> Iterator[TestDriver]:
    """The same application in the test driver, which has read the same records in the same partitions."""
    with driver_of(sides) as driver:
        yield driver


@pytest.mark.parametrize("store", STORES)
def test_a_store_answers_what_javas_answers(store: str, sides: Sides) -> None:
    theirs = sides.rows_of_java(store)
    assert len(theirs) > 80, "Java has nothing to compare with"
    assert difference_of_stores(store, theirs, sides.our_rows(store)) == ""


@pytest.mark.parametrize("store", STORES)
def test_a_store_in_the_test_driver_holds_what_javas_answers(store: str, sides: Sides, driven: TestDriver) -> None:
    kind = sides.definition(store).plain_kind
    found = rows_in(driven, store, kind, sides.given.keys)
    assert difference_of_stores(store, sides.rows_of_java(store), found) == ""
    if store != "groupcount":  # which change of a group comes last is not certain, and so its headers
        assert difference(sides.our_rows(store), found) == ""


@pytest.mark.parametrize("store", STORES)
def test_a_changelog_has_the_bytes_and_timestamps_of_javas_in_the_same_partitions(store: str, sides: Sides) -> None:
    theirs, ours = sides.changelogs(store)
    assert len(theirs) > 100, "Java has written nothing to compare with"
    assert difference_of_stores(store, theirs, ours) == ""


@pytest.mark.parametrize("store", NOTED)
def test_stores_of_processors_had_rows_and_deletes_with_headers_and_without(store: str, sides: Sides) -> None:
    theirs, _ = sides.changelogs(store)
    sent = {(value is None, len(headers)) for value, _, headers in theirs.values()}
    assert sent == {(is_gone, count) for is_gone in (False, True) for count in range(5)}


@pytest.mark.parametrize(("store", "topic"), [("table", "table"), ("count", "events"), ("processed", "events")])
def test_a_row_of_an_operator_here_has_the_headers_of_the_record_that_changed_it_last(
    store: str, topic: str, sides: Sides
) -> None:
    newest = {}
    for record in read_all(sides.log, f"{sides.given.prefix}{topic}", PARTITIONS):
        if record.key is not None and (topic == "table" or record.value is not None or store == "processed"):
            newest[record.key.decode()] = tuple(record.headers) if sides.definition(store).headers else None
    assert {key: headers for key, (*_, headers) in sides.our_rows(store).items()}.items() <= newest.items()


@pytest.mark.parametrize("store", STORES)
def test_a_changelog_has_the_settings_of_javas(store: str, sides: Sides) -> None:
    theirs = sides.settings(sides.java.changelog(store))
    assert other_settings(sides.definition(store).changelog_settings(), theirs) == {}
    if store not in TABLES:
        assert sides.settings(sides.our_changelog(store)) == theirs


def test_the_comparison_had_late_expired_and_deleted_rows_to_leave_out(sides: Sides) -> None:
    windows, _ = sides.changelogs("tumbling")
    counted = sum(int.from_bytes(count, "big") for count, *_ in windows.values())
    given = sum(key is not None for key, *_ in input_of("events", RECORDS, 0))
    assert 0 < given - counted < given / 10, "late"
    for store in ("tumbling", "hopping", "sliding", "session"):
        written, _ = sides.changelogs(store)
        assert len(sides.rows_of_java(store)) < len(written), f"{store}: expired"
    assert len(sides.rows_of_java("table")) < len(sides.given.keys), "deleted"
    assert (None, None) in sides.changelogs("versioned")[0].values(), "deleted"
