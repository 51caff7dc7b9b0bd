"""Topics that a function chooses for each row, and partitioners of one's own."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from stateline import App, Topic, serdes
from stateline.dsl.streams import Stream
from stateline.log import NewTopic
from stateline.testing import Record, TestDriver
from stateline_store import RecordError, TopicPartition, TopologyError


def rows(app: App) -> Stream:
    return app.stream("rows", key=serdes.string, value=serdes.string)


def read(driver: TestDriver, topic: str) -> list[Any]:
    return [record.value for record in driver.read(topic)]


def test_each_row_goes_to_the_topic_that_the_function_returns_in_that_topics_types() -> None:
    app = App("chosen")
    number = app.topic("number", key=serdes.string, value=serdes.string)
    rows(app).to(lambda key, value: number if value.isdigit() else f"to-{value}", topics=[number, "to-x", "to-y"])
    with TestDriver(app) as driver:
        for value in ("x", "1", "y", "x"):
            driver.pipe("rows", "k", value)
        assert [read(driver, topic) for topic in ("to-x", "to-y", "number")] == [["x", "x"], ["y"], ["1"]]


def test_a_topic_that_was_not_declared_keeps_its_own_types() -> None:
    app, length = App("chosen"), Topic("length", serdes.string, serdes.int64)
    lengths = rows(app).map_values(lambda key, value: len(value), value=serdes.json)
    lengths.to(lambda key, value: length if value < 5 else "long", topics=["long"])
    with TestDriver(app, partitions={"rows": 1}) as driver:
        with closing(driver._place.log.admin()) as admin:
            admin.create_topics([NewTopic("length", 1)])
        driver.pipe_all("rows", [Record("k", "text"), Record("k", "longer")])
        with closing(driver._place.log.consumer()) as consumer:
            consumer.assign({TopicPartition("length", 0): 0})
            assert [record.value for record in consumer.poll(2, 1.0)] == [serdes.int64.serialize(4)]
        assert read(driver, "long") == [6]


def test_types_that_differ_from_the_declared_ones_are_refused() -> None:
    app, other = App("chosen"), Topic("out", serdes.string, serdes.int64)
    rows(app).to("out")
    with pytest.raises(TopologyError, match=r"'out' is declared in .* with key string and value string"):
        rows(app).to(other)
    rows(app).to(lambda key, value: other)
    with TestDriver(app) as driver, pytest.raises(RecordError, match=r"'out' is declared in .* and value string"):
        driver.pipe("rows", "k", "v")


def test_a_function_of_three_parameters_also_gets_the_record() -> None:
    app = App("chosen")

    def by_header(key: str, value: str, record: Any) -> str:
        assert (record.key, record.value, record.topic) == (key, value, "rows")
        return "late" if record.timestamp_ms < 10 and record.headers else "on-time"

    rows(app).to(by_header, topics=["late", "on-time"])
    with TestDriver(app) as driver:
        driver.pipe("rows", "k", "a", timestamp_ms=5, headers=[("h", b"1")])
        driver.pipe("rows", "k", "b", timestamp_ms=15)
        assert (read(driver, "late"), read(driver, "on-time")) == (["a"], ["b"])


def test_a_row_for_a_topic_that_does_not_exist_meets_the_production_handler() -> None:
    app = App("chosen")
    rows(app).to(lambda key, value: value)
    with TestDriver(app) as driver, pytest.raises(RecordError, match=r"'nowhere'.*no topic.*create it first"):
        driver.pipe("rows", "k", "nowhere")
    with TestDriver(app, config={"production.exception.handler": "skip"}) as driver:
        driver.pipe("rows", "k", "nowhere")
        driver.pipe("rows", "k", "nowhere")


def test_a_result_that_is_no_topic_meets_the_processing_handler() -> None:
    app = App("chosen")
    rows(app).to(lambda key, value: 5)  # type: ignore[arg-type]
    with TestDriver(app) as driver, pytest.raises(RecordError, match="gave 5 as the topic of a row"):
        driver.pipe("rows", "k", "v")


CHOICES = {"one": 1, "all": [0, 1, 2], "none": [], "as usual": None}


def test_a_partitioner_chooses_one_partition_or_several_or_none(caplog: pytest.LogCaptureFixture) -> None:
    app = App("parts")

    def choose(topic: str, key: str, value: str, partitions: int) -> Any:
        assert (topic, key, partitions) == ("out", "k", 3)
        return CHOICES[value]

    rows(app).to("out", partitioner=choose)
    rows(app).to("plain")
    with TestDriver(app, partitions=3) as driver:
        driver.pipe_all("rows", [Record("k", value) for value in CHOICES])
        (home,) = {record.partition for record in driver.read("plain")}
        found = sorted((record.value, record.partition) for record in driver.read("out"))
        assert found == sorted([("one", 1), *(("all", n) for n in range(3)), ("as usual", home)])
        (told,) = [line for line in caplog.messages if "drops records" in line]
        assert told == "Step 'to out' drops records that got no partition from the partitioner: 1 so far, of 4 records"


@pytest.mark.parametrize("wrong", [3, -1, "1", True, [0, 7]])
def test_a_partition_that_is_not_there_meets_the_processing_handler(wrong: Any) -> None:
    app = App("parts")
    rows(app).to("out", partitioner=lambda topic, key, value, partitions: wrong)
    with TestDriver(app, partitions=3) as driver, pytest.raises(RecordError, match="a whole number from 0 to 2"):
        driver.pipe("rows", "k", "v")


def test_a_table_behind_a_partitioner_is_kept_in_its_partition_and_found_there() -> None:
    app = App("parts")
    rows(app).repartition("r", partitioner=lambda topic, key, value, partitions: 2).to_table("kept")
    with TestDriver(app, partitions=3) as driver:
        driver.pipe_all("rows", [Record("a", "1"), Record("b", "2"), Record("c", "3")])
        assert {key: driver.store("kept").get(key) for key in "abc"} == {"a": "1", "b": "2", "c": "3"}


def test_other_functions_are_refused_where_they_are_declared() -> None:
    app = App("parts")
    with pytest.raises(TopologyError, match="topic, key, value, partitions"):
        rows(app).to("out", partitioner=lambda key: 1)  # type: ignore[arg-type,misc]
    with pytest.raises(TopologyError, match="key, value"):
        rows(app).to(lambda key: "out")  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="topics=… is for a function"):
        rows(app).to("out", topics=["other"])
