"""Several topics as one stream. A golden vector compares the store and its changelog with Kafka Streams'."""

from __future__ import annotations

from typing import Any

import pytest

from stateline import App, serdes
from stateline.testing import TestDriver
from stateline_store import TopologyError


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_rows_of_all_topics_feed_one_store_and_its_position_names_each(guarantee: str) -> None:
    app = App("several", config={"processing.guarantee": guarantee})
    both = app.stream(["a", "b"], key=serdes.string, value=serdes.string)
    both.group_by_key().reduce(lambda reduced, value: reduced + value, "texts")
    both.to("out")
    with TestDriver(app, partitions=3) as driver:
        for topic, value in (("a", "1"), ("b", "2"), ("a", "3")):
            driver.pipe(topic, "k", value)
        driver.restart()
        driver.pipe("b", "k", "4")
        assert driver.store("texts").get("k") == "1234"
        assert [row.value for row in driver.read("out")] == ["1", "2", "3", "4"]
        assert set(driver.client.get("/v1/stores/texts/keys/k").json()["position"]) == {"a", "b"}
    assert len(app.topology().subtopologies) == 1


def test_the_topics_need_equal_partition_counts() -> None:
    app = App("several")
    app.stream(["a", "b"]).group_by_key().count("counts")
    with pytest.raises(TopologyError, match="partitions"), TestDriver(app, partitions={"a": 2, "b": 3}):
        pass


@pytest.mark.parametrize(
    ("topics", "message"),
    [
        ([], "no topic: name at least one"),
        (["a", "a"], "a topic twice"),
        (["a", 5], "is no topic"),
        (5, "give it as a list"),
    ],
)
def test_lists_that_are_no_topics_are_refused(topics: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        App("several").stream(topics)


def test_topics_of_other_types_are_refused_with_both() -> None:
    app = App("several")
    texts = app.topic("texts", key=serdes.string, value=serdes.string)
    with pytest.raises(TopologyError, match=r"'texts' has records of .* and 'raw' of"):
        app.stream([texts, "raw"])
