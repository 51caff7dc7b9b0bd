"""Joins of tables by foreign key, against what plain Python makes of the same changes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stateline import App, serdes
from stateline.model.internal_topics import created_topics
from stateline.serde.murmur3 import hash128
from stateline.serde.subscription import SubscriberSerde, SubscriptionAnswer, SubscriptionSerde
from stateline.testing import TestDriver
from stateline_store import InvalidArgumentError, TopologyError
from support.run.length import long_or_short

TEXTS: dict[str, Any] = {"key": serdes.string, "value": serdes.string}
Row = tuple[str, int]  # value and timestamp


def customer_of(key: str, value: str) -> str | None:
    return None if value[0] == "x" else value[:2]


def both(order: str, name: str | None) -> str | None:
    return None if name == "hidden" else f"{order}/{name}"


def declared(config: dict[str, str] | None = None, *, persistent: bool = True) -> App:
    app = App("app", config=config or {})
    orders = app.ktable(app.table("orders", **TEXTS))
    names = app.ktable(app.table("names", **TEXTS))
    orders.join(names, both, "inner", on=customer_of, name="i", persistent=persistent)
    orders.left_join(names, both, "left", on=customer_of, name="l", persistent=persistent).to_stream().to("out")
    return app


def joined(orders: dict[str, str], names: dict[str, str], *, left: bool) -> dict[str, str]:
    found = {}
    for key, order in orders.items():
        name = names.get(customer_of(key, order) or "")
        if (name is not None or left) and (made := both(order, name)) is not None:
            found[key] = made
    return found


ORDERS = st.tuples(
    st.just("orders"),
    st.sampled_from(["o1", "o2", "o3", "o4"]),
    st.none() | st.sampled_from(["c1-a", "c1-b", "c2-a", "c3-a", "x"]),
)
NAMES = st.tuples(
    st.just("names"), st.sampled_from(["c1", "c2", "c3"]), st.none() | st.sampled_from(["Ada", "Bob", "hidden"])
)


@settings(max_examples=long_or_short(100, 12), deadline=None)
@given(st.lists(ORDERS | NAMES, min_size=5, max_size=40), st.sampled_from([1, 4]), st.booleans())
def test_results_are_those_of_both_tables_however_they_changed(
    changes: list[tuple[str, str, str | None]], at_a_time: int, persistent: bool
) -> None:
    tables: dict[str, dict[str, str]] = {"orders": {}, "names": {}}
    with TestDriver(declared(persistent=persistent), partitions=2, autocommit=False) as driver:
        for number, (topic, key, value) in enumerate(changes, 1):
            tables[topic].pop(key, None)
            if value is not None:
                tables[topic][key] = value
            driver.pipe(topic, key, value, timestamp_ms=number)
            if number % at_a_time == 0 or number == len(changes):
                driver.commit()
                for store in ("inner", "left"):
                    wanted = joined(tables["orders"], tables["names"], left=store == "left")
                    assert {each.key: each.value for each in driver.store(store).all()} == wanted, store


def test_a_join_that_is_not_persistent_keeps_nothing_on_disk() -> None:
    kept = declared(persistent=False).topology().stores
    assert {name for name, store in kept.items() if not store.persistent} == {
        "inner", "left", "i-subscription-store", "l-subscription-store",
    }  # fmt: skip


def test_each_subscription_names_the_partition_of_its_row_and_is_answered_there() -> None:
    with TestDriver(declared(), partitions=2) as driver:
        for n in range(8):
            driver.pipe("orders", f"o{n}", "c1-a", timestamp_ms=1)
        driver.pipe("names", "c1", "Ada", timestamp_ms=2)
        subscribed = {
            each.value.primary_key: each.value for each in driver.read("app-i-subscription-registration-topic")
        }
        answered = {each.key: each for each in driver.read("app-i-subscription-response-topic")}
        assert {each.partition for each in subscribed.values()} == {0, 1}
        assert {key: each.partition for key, each in answered.items()} == {
            k: s.partition for k, s in subscribed.items()
        }
        assert all(answered[key].value.hash == each.hash for key, each in subscribed.items())


def test_an_answer_for_an_older_value_is_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    with TestDriver(declared()) as driver:
        driver.pipe("names", "c1", "Ada", timestamp_ms=1)
        driver.pipe("orders", "o1", "c1-a", timestamp_ms=2)
        (answer,) = driver.read("app-i-subscription-response-topic")
        driver.pipe("orders", "o1", "c1-b", timestamp_ms=3)
        driver.pipe("app-i-subscription-response-topic", "o1", answer.value, timestamp_ms=4)
        assert [each.value for each in driver.store("inner").all()] == ["c1-b/Ada"]
        assert "Step 'resolve i' drops records that answer a left row that has changed since: 1 so far" in caplog.text


@pytest.mark.parametrize(("old", "new"), [("x", None), ("x", "x-b"), ("c1-a", "c1-b"), ("x", "c2-a")])
def test_a_result_goes_although_its_row_changed_before_the_answer_that_ends_it(old: str, new: str | None) -> None:
    """Kafka Streams drops that answer as stale, and keeps the result for ever."""
    with TestDriver(declared()) as driver:
        driver.pipe("orders", "o1", old, timestamp_ms=1)
        answers = "app-i-subscription-response-topic"
        hash_ = hash128(old.encode())
        driver.pipe(answers, "o1", SubscriptionAnswer(hash_, "Ada"), timestamp_ms=2)
        driver.pipe("orders", "o1", new, timestamp_ms=3)
        assert [each.value for each in driver.store("inner").all()] == [f"{old}/Ada"], "nothing is said of the new row"
        driver.pipe(answers, "o1", SubscriptionAnswer(hash_, None), timestamp_ms=4)
        assert driver.store("inner").all() == []


@pytest.mark.parametrize("store_format", ["DEFAULT", "HEADERS"])
def test_a_row_that_asks_again_keeps_its_timestamp_and_has_no_headers_but_its_own(store_format: str) -> None:
    with TestDriver(declared({"dsl.store.format": store_format})) as driver:
        driver.pipe("names", "c1", "Ada", timestamp_ms=1, headers=(("of", b"Ada"),))
        driver.pipe("orders", "o1", "c1-a", timestamp_ms=9, headers=(own := (("of", b"new"),)))
        stale = SubscriptionAnswer(hash128(b"c1-old"), None)
        driver.pipe("app-i-subscription-response-topic", "o1", stale, timestamp_ms=3, headers=(("of", b"old"),))
        asked = driver.read("app-i-subscription-registration-topic")
        kept = own if store_format == "HEADERS" else ()
        said = [(each.value.instruction, each.timestamp_ms, each.headers) for each in asked]
        assert said == [(3, 9, own), (2, 9, kept)]
        assert [each.headers for each in driver.read("app-i-subscription-response-topic")[-1:]] == [kept]
        assert [(each.value, each.timestamp) for each in driver.store("inner").all()] == [("c1-a/Ada", 9)]


def test_a_late_answer_of_another_foreign_key_leaves_the_result() -> None:
    with TestDriver(declared()) as driver:
        driver.pipe("names", "c2", "Bob", timestamp_ms=1)
        driver.pipe("orders", "o1", "c1-a", timestamp_ms=2)
        driver.pipe("orders", "o1", "c2-a", timestamp_ms=3)
        late = SubscriptionAnswer(hash128(b"c1-a"), None)
        driver.pipe("app-i-subscription-response-topic", "o1", late, timestamp_ms=4)
        assert [each.value for each in driver.store("inner").all()] == ["c2-a/Bob"]


def test_the_topics_are_like_the_tables_that_they_lead_to() -> None:
    app = App("app")
    orders = app.ktable(app.table("orders", **TEXTS))
    groups = app.ktable(app.table("names", **TEXTS)).group_by(lambda key, value: (value, key), name="g", partitions=5)
    orders.join(groups.count("counts"), lambda order, count: f"{order}{count}", "st", on=customer_of, name="fk")
    like = {topic.name: topic.like for topic in created_topics(app.topology())}
    assert like["app-fk-subscription-registration-topic"] == ("app-g-repartition",)
    assert like["app-fk-subscription-response-topic"] == ("orders",)
    places = list(like)
    assert places.index("app-g-repartition") < places.index("app-fk-subscription-registration-topic")


def test_subscriptions_are_shown_and_asked_for_by_both_keys() -> None:
    key, value = SubscriberSerde(serdes.string, serdes.int64), SubscriptionSerde(serdes.int64)
    data = key.parse_text('["c1", 7]')
    assert data == b"\0\0\0\2c1" + (7).to_bytes(8)
    assert (key.deserialize(data), key.to_json(data)) == (("c1", 7), ["c1", 7])
    subscription = (2, b"\1" * 16, 7, 3)
    assert value.deserialize(value.serialize(subscription)) == subscription
    shown = {"instruction": 2, "hash": "01" * 16, "primary_key": 7, "partition": 3}
    assert value.to_json(value.serialize(subscription)) == shown
    for wrong in (b"", b"\0\0\0\5c", b"\0\0"):
        with pytest.raises(InvalidArgumentError, match="no subscriber"):
            key.check(wrong)
    for wrong in (b"", b"\x02\x00", b"\x01\x02short", b"\x81\x09\0\0\0\0"):
        with pytest.raises(InvalidArgumentError, match="no subscription"):
            value.check(wrong)


def test_a_join_by_foreign_key_needs_a_name_and_others_have_none() -> None:
    app = App("app")
    orders, names = (app.ktable(app.table(topic, **TEXTS)) for topic in ("orders", "names"))
    with pytest.raises(TopologyError, match="give the join a name"):
        orders.join(names, both, on=customer_of)
    with pytest.raises(TopologyError, match="Give `on`, too"):
        orders.left_join(names, both, name="fk")


def refused(key: str, value: str) -> str | None:
    if value == "oops":
        raise ValueError(value)
    return customer_of(key, value)


@pytest.mark.parametrize("then", ["c1-b", None, "x"])
def test_a_row_that_on_refuses_has_no_foreign_key(then: str | None) -> None:
    app = App("app", config={"processing.exception.handler": "skip"})
    orders, names = (app.ktable(app.table(topic, **TEXTS)) for topic in ("orders", "names"))
    orders.join(names, both, "inner", on=refused, name="i")
    orders.left_join(names, both, "left", on=refused, name="l")
    with TestDriver(app) as driver:
        for topic, key, value in [("names", "c1", "Ada"), ("orders", "o1", "c1-a"), ("orders", "o2", "oops")]:
            driver.pipe(topic, key, value)
        assert {entry.key: entry.value for entry in driver.store("inner").all()} == {"o1": "c1-a/Ada"}
        driver.pipe("orders", "o1", "oops")
        assert list(driver.store("inner").all()) == []
        assert {entry.key: entry.value for entry in driver.store("left").all()} == {
            "o1": "oops/None",
            "o2": "oops/None",
        }
        for key in ("o1", "o2"):
            driver.pipe("orders", key, then)
        kept = {} if then is None else dict.fromkeys(("o1", "o2"), then)
        for store in ("inner", "left"):
            found = {entry.key: entry.value for entry in driver.store(store).all()}
            assert found == joined(kept, {"c1": "Ada"}, left=store == "left")
