"""A ported application takes over stores and topics whose names Kafka Streams generated: they are given here."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from conformance.golden import section
from stateline import App, JoinWindows, SessionWindows, TumblingWindows, serdes, until_time_limit
from stateline.dsl.streams import Stream, Table
from stateline_store import InvalidArgumentError

NAMES = {each["name"]: each for each in section("generated_names")}
TEXTS: dict[str, Any] = {"key": serdes.string, "value": serdes.string}
MINUTE = timedelta(minutes=1)
WITHIN = JoinWindows(timedelta(milliseconds=40))


def stream(app: App, topic: str = "a") -> Stream:
    return app.stream(topic, **TEXTS)


def table(app: App, topic: str = "a") -> Table:
    return app.ktable(app.table(topic, store=f"t{topic}", **TEXTS))


def plus(one: str, other: str) -> str:
    return one + other


def newest(key: str, value: str, aggregate: str) -> str:
    return value


def pair(key: str, value: str) -> tuple[str, str]:
    return key, value


def by_foreign_key(app: App, method: str, left: Table, name: str) -> None:
    getattr(left, method)(table(app, "b"), plus, "result", on=lambda key, value: value, name=name)


TOPOLOGIES: dict[str, Callable[[App], object]] = {
    "count": lambda app: stream(app).group_by_key().count("KSTREAM-AGGREGATE-STATE-STORE-0000000001"),
    "regrouped_count": lambda app: (
        stream(app)
        .group_by(lambda key, value: value, name="KSTREAM-AGGREGATE-STATE-STORE-0000000003")
        .count("KSTREAM-AGGREGATE-STATE-STORE-0000000003")
    ),
    "windowed_reduce": lambda app: (
        stream(app)
        .group_by_key()
        .windowed_by(TumblingWindows(MINUTE))
        .reduce(plus, "KSTREAM-REDUCE-STATE-STORE-0000000001")
    ),
    "sessions": lambda app: (
        stream(app).group_by_key().windowed_by(SessionWindows(MINUTE)).count("KSTREAM-AGGREGATE-STATE-STORE-0000000002")
    ),
    "repartition": lambda app: (
        stream(app).select_key(lambda key, value: value).repartition("KSTREAM-REPARTITION-0000000002").to("out")
    ),
    "cogroup": lambda app: (
        stream(app)
        .group_by_key()
        .cogroup(newest)
        .cogroup(stream(app, "b").group_by_key(), newest)
        .aggregate(str, "COGROUPKSTREAM-AGGREGATE-STATE-STORE-0000000002", value=serdes.string)
    ),
    "table_count": lambda app: (
        table(app)
        .group_by(pair, name="KTABLE-AGGREGATE-STATE-STORE-0000000003")
        .count("KTABLE-AGGREGATE-STATE-STORE-0000000003")
    ),
    "table_reduce": lambda app: (
        table(app)
        .group_by(pair, name="KTABLE-AGGREGATE-STATE-STORE-0000000003")
        .reduce(plus, plus, "KTABLE-AGGREGATE-STATE-STORE-0000000003")
    ),
    "inner_join": lambda app: stream(app).join(
        stream(app, "b"), plus, within=WITHIN, store="KSTREAM-JOINTHIS-0000000004-store"
    ),
    "left_join": lambda app: stream(app).left_join(
        stream(app, "b"), plus, within=WITHIN, store="KSTREAM-JOINTHIS-0000000004-store"
    ),
    "outer_join": lambda app: stream(app).outer_join(
        stream(app, "b"), plus, within=WITHIN, store="KSTREAM-OUTERTHIS-0000000004-store"
    ),
    "suppress": lambda app: (
        table(app).suppress(until_time_limit(MINUTE), name="KTABLE-SUPPRESS-STATE-STORE-0000000003").to_stream()
    ),
    "foreign_key_join": lambda app: by_foreign_key(
        app, "join", table(app), "KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-0000000004"
    ),
    "foreign_key_left_join": lambda app: by_foreign_key(
        app, "left_join", stream(app).to_table("a-kept"), "KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-0000000005"
    ),
}


def test_there_is_a_topology_for_each_of_java() -> None:
    assert list(TOPOLOGIES) == list(NAMES)


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_stores_and_topics_have_the_names_that_kafka_streams_generates(name: str) -> None:
    app = App("app", config={"ensure.explicit.internal.resource.naming": True})
    TOPOLOGIES[name](app)
    topology = app.topology()
    assert not topology.generated, "nothing would move if another step came before it"
    assert sorted(topology.stores.keys() - {"result"}) == NAMES[name]["stores"]
    read = {topic.name for part in topology.subtopologies for topic in part.sources} - {"a", "b"}
    assert sorted(topic.removeprefix("app-") for topic in read) == NAMES[name]["topics"]


def test_a_generated_name_of_another_kind_of_join_is_refused() -> None:
    app = App("app")
    with pytest.raises(InvalidArgumentError, match="'KSTREAM-OUTERTHIS-0000000004-store'"):
        stream(app).outer_join(stream(app, "b"), plus, within=WITHIN, store="KSTREAM-JOINTHIS-0000000004-store")
