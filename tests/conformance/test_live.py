"""Of the same input our stores answer what Kafka Streams' do, and leave the same changelogs, under both guarantees."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from conformance.live import Sides, both_sides, difference
from conformance.live_app import STORES
from conformance.live_driver import driver_of, rows_in
from conformance.live_input import RECORDS, Input, input_of, write_input
from stateline.deployment.topics import other_settings
from stateline.log.kafka import KafkaLog
from stateline.testing import TestDriver
from support.kafka.java_streams import BY_STORES, class_path
from support.kafka.kafka_broker import missing_is_a_failure
from support.kafka.maven import JarsUnavailableError
from support.kafka.shared_broker import SharedBroker
from support.run.length import long_or_short

TABLES = ("table", "versioned")  # their input is their changelog

pytestmark = pytest.mark.timeout(1200 + RECORDS // 250)  # both sides work within the first test


@pytest.fixture(scope="module")
def given(kafka_broker: SharedBroker) -> Input:
    try:
        class_path()
    except JarsUnavailableError as error:
        if missing_is_a_failure():
            pytest.fail(str(error))
        pytest.skip(str(error))
    with closing(KafkaLog(kafka_broker.bootstrap_servers)) as log:
        return write_input(log, "live-")


@pytest.fixture(scope="module", params=long_or_short(["at_least_once", "exactly_once_v2"], ["exactly_once_v2"]))
def guarantee(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=long_or_short([*BY_STORES], ["default"]))
def sides(
    kafka_broker: SharedBroker,
    given: Input,
    guarantee: str,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Sides]:
    directory = tmp_path_factory.mktemp("live")
    with both_sides(kafka_broker.bootstrap_servers, given, guarantee, request.param, directory) as made:
        yield made


@pytest.fixture(scope="module")
def driven(sides: Sides) -> Iterator[TestDriver]:
    """The same application in the test driver, which has read the same records in the same partitions."""
    with driver_of(sides) as driver:
        yield driver


@pytest.mark.parametrize("store", STORES)
def test_a_store_answers_what_javas_answers(store: str, sides: Sides) -> None:
    theirs = sides.rows_of_java(store)
    assert len(theirs) > 80, "Java has nothing to compare with"
    assert difference(theirs, sides.our_rows(store)) == ""


@pytest.mark.parametrize("store", STORES)
def test_a_store_in_the_test_driver_holds_what_javas_answers(store: str, sides: Sides, driven: TestDriver) -> None:
    assert difference(sides.rows_of_java(store), rows_in(driven, store, sides.given.keys)) == ""


@pytest.mark.parametrize("store", STORES)
def test_a_changelog_has_the_bytes_and_timestamps_of_javas_in_the_same_partitions(store: str, sides: Sides) -> None:
    versioned = store == "versioned"
    theirs = sides.changelog(sides.java.changelog(store), versioned=versioned)
    assert len(theirs) > 100, "Java has written nothing to compare with"
    assert difference(theirs, sides.changelog(sides.our_changelog(store), versioned=versioned)) == ""


@pytest.mark.parametrize("store", STORES)
def test_a_changelog_has_the_settings_of_javas(store: str, sides: Sides) -> None:
    theirs = sides.settings(sides.java.changelog(store))
    assert other_settings(sides.definition(store).changelog_settings(), theirs) == {}
    if store not in TABLES:
        assert sides.settings(sides.our_changelog(store)) == theirs


def test_the_comparison_had_late_expired_and_deleted_rows_to_leave_out(sides: Sides) -> None:
    windows = sides.changelog(sides.java.changelog("tumbling"), versioned=False)
    counted = sum(int.from_bytes(count, "big") for count, _ in windows.values())
    given = sum(key is not None for key, _, _ in input_of("events", RECORDS, 0))
    assert 0 < given - counted < given / 10, "late"
    for store in ("tumbling", "hopping", "sliding", "session"):
        written = sides.changelog(sides.java.changelog(store), versioned=False)
        assert len(sides.rows_of_java(store)) < len(written), f"{store}: expired"
    assert len(sides.rows_of_java("table")) < len(sides.given.keys), "deleted"
    assert None in sides.changelog(sides.java.changelog("versioned"), versioned=True).values(), "deleted"
