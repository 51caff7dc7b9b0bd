"""What is connected runs together; names, partitions and mistakes of an application."""

import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from stateline import serdes, stores
from stateline.deployment.topics import subtopology_partitions, wanted_partitions
from stateline.dsl.app import App
from stateline.model.internal_topics import created_topics, required_topics
from stateline.model.pipeline import Windowing
from stateline.model.topic import Topic
from stateline.model.topology import Topology
from stateline.processing.store_views import StoreView
from stateline.worker import InputRecord, Output
from stateline_store import InvalidArgumentError, TopologyError


def flights() -> App:
    app = App("flights")
    departures = app.topic("departures", key=serdes.string, value=serdes.json)
    app.table(departures, store="aircraft")
    app.table("weather", key=serdes.string, value=serdes.json)
    by_airport = app.repartition("by-airport", key=serdes.string, value=serdes.json)
    totals = app.store(stores.key_value("totals", key=serdes.string, value=serdes.json))

    @app.process(departures, forwards=[by_airport])
    def rekey(record: InputRecord, airport: Output) -> None: ...

    @app.process(by_airport, stores=[totals])
    def total(record: InputRecord, totals: StoreView) -> None: ...

    return app


def named(topology: Topology) -> list[tuple[int, list[str], list[str], list[str]]]:
    return [
        (s.ordinal, [t.name for t in s.sources], [d.name for d in s.stores], [p.name for p in s.processors])
        for s in topology.subtopologies
    ]


def test_what_shares_a_topic_or_a_store_runs_together_and_forwarding_does_not_connect() -> None:
    assert named(flights().topology()) == [
        (0, ["departures"], ["aircraft"], ["rekey"]),
        (1, ["weather"], ["weather"], []),
        (2, ["flights-by-airport-repartition"], ["totals"], ["total"]),
    ]


def test_two_topics_whose_processors_share_a_store_are_one_subtopology() -> None:
    app = App("a")
    shared = app.store(stores.key_value("shared", key=serdes.string, value=serdes.string))
    app.table("t")
    app.process("x", stores=[shared], name="one")(lambda record, shared: None)
    app.process("y", stores=[shared], name="two")(lambda record, shared: None)
    assert named(app.topology()) == [(0, ["t"], ["t"], []), (1, ["x", "y"], ["shared"], ["one", "two"])]


def test_a_tables_changelog_is_its_topic_and_another_stores_has_kafka_streams_name() -> None:
    topology = flights().topology()
    assert topology.stores["aircraft"].changelog("flights") == "departures"
    assert topology.stores["totals"].changelog("flights") == "flights-totals-changelog"
    unlogged = stores.key_value("u", key=serdes.string, value=serdes.string, logged=False)
    assert unlogged.changelog("flights") is None


def test_source_topics_are_required_and_the_rest_is_created_with_its_settings() -> None:
    topology = flights().topology()
    assert required_topics(topology) == ("departures", "weather")
    created = {topic.name: topic for topic in created_topics(topology)}
    assert set(created) == {"flights-by-airport-repartition", "flights-totals-changelog"}
    assert created["flights-totals-changelog"].settings == {
        "cleanup.policy": "compact",
        "message.timestamp.type": "CreateTime",
    }
    assert created["flights-by-airport-repartition"].settings["retention.ms"] == "-1"


def test_a_created_topic_has_as_many_partitions_as_what_it_follows_even_through_another_created_one() -> None:
    counts = wanted_partitions(created_topics(flights().topology()), {"departures": 6, "weather": 2})
    assert counts == {"flights-by-airport-repartition": 6, "flights-totals-changelog": 6}


def test_a_pipelines_result_topic_is_created_and_can_be_kept_as_a_table() -> None:
    app = App("p")
    reads = app.topic("in", key=serdes.string, value=serdes.json)
    app.pipeline(reads=reads, writes="out", key="k", partitions=3, name="agg")(lambda frame: frame)
    app.table("out")
    topology = app.topology()
    assert required_topics(topology) == ("in",)
    assert wanted_partitions(created_topics(topology), {"in": 8}) == {"out": 3}
    assert topology.stores["out"].value.name == "json"


def test_topics_processed_together_need_equal_partition_counts() -> None:
    app = App("a")
    shared = app.store(stores.key_value("shared", key=serdes.string, value=serdes.string))
    app.process("x", stores=[shared], name="one")(lambda record, shared: None)
    app.process("y", stores=[shared], name="two")(lambda record, shared: None)
    assert subtopology_partitions(app.topology(), {"x": 2, "y": 2}) == {0: 2}
    with pytest.raises(TopologyError, match="x has 2, y has 3"):
        subtopology_partitions(app.topology(), {"x": 2, "y": 3})


def test_a_store_that_no_processor_uses_is_refused_by_name() -> None:
    app = App("a")
    app.store(stores.key_value("lonely", key=serdes.string, value=serdes.string))
    with pytest.raises(TopologyError, match="lonely"):
        app.topology()


def test_names_that_are_taken_or_that_kafka_would_refuse_are_refused() -> None:
    app = App("a")
    app.table("t")
    with pytest.raises(TopologyError, match=r"'t' is declared in .*, line"):
        app.table("t")
    with pytest.raises(InvalidArgumentError, match="'no spaces'"):
        app.topic("no spaces")
    with pytest.raises(InvalidArgumentError, match=r"'\.\.'"):
        App("..")
    with pytest.raises(TopologyError, match="already, with key bytes"):
        app.table("t", key=serdes.string, store="again")


def test_a_processor_may_only_use_declared_stores() -> None:
    app = App("a")
    stray = stores.key_value("stray", key=serdes.string, value=serdes.string)
    with pytest.raises(TopologyError, match="stray"):
        app.process("x", stores=[stray], name="p")(lambda record, stray: None)


def test_a_function_that_cannot_be_called_with_its_stores_and_outputs_is_refused_when_it_is_declared() -> None:
    app = App("a")
    seen = app.store(stores.key_value("seen", key=serdes.string, value=serdes.string))
    with pytest.raises(
        TopologyError, match=r"Processor 'two' calls its function with 2 arguments: record, seen\. two takes \(record\)"
    ):

        @app.process("x", stores=[seen])
        def two(record: InputRecord) -> None: ...

    @app.process("x", stores=[seen])
    def any_number(record: InputRecord, *rest: StoreView) -> None: ...


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"reads": []}, "reads=[] and tables=[]"),
        ({"key": []}, "key=[]"),
        ({"key": ["k", 3]}, "the column 3"),
        ({"timestamp": ""}, "the column ''"),
        ({"output_mode": "replace"}, "output_mode='replace': use one of append, update, complete"),
        ({"result": "rows"}, "result='rows': use one of table, stream"),
        ({"trigger_ms": -1}, "trigger_ms=-1"),
        ({"trigger_ms": 0.5}, "trigger_ms=0.5"),
        ({"trigger_ms": True}, "trigger_ms=True"),
        ({"branches": ["out"]}, "the result topic 'out' twice"),
        ({"branches": ["in"]}, "'in' as input and as result"),
        ({"static": ["out"]}, "'out' as input and as result"),
    ],
)
def test_what_makes_no_sense_for_a_pipeline_is_refused_where_it_is_declared(
    arguments: dict[str, Any], says: str
) -> None:
    app = App("app")
    declare = app.pipeline(**{"reads": "in", "writes": "out", "key": "k", "name": "mine", **arguments})
    with pytest.raises(InvalidArgumentError, match=re.escape(says)) as raised:
        declare(lambda frame: frame)
    assert str(raised.value).startswith("Pipeline 'mine' was given ")
    declare = app.pipeline(reads="in", writes="good", key="k", name="mine")
    declare(lambda frame: frame)  # the name was not taken


def test_no_two_pipelines_write_to_one_topic() -> None:
    app = App("app")
    app.pipeline(reads="in", writes="one", branches=["other"], key="k", name="first")(lambda frame: frame)
    for taken in ({"writes": "one"}, {"writes": "own", "branches": ["other"]}):
        arguments: dict[str, Any] = {"reads": "in", "key": "k", "name": "second", **taken}
        declare = app.pipeline(**arguments)
        with pytest.raises(TopologyError, match=r"Pipeline 'first' .* and 'second' both write to '(one|other)'"):
            declare(lambda frame: frame)
    app.pipeline(reads="one", writes="own", static=["other"], key="k", name="second")(lambda *frames: frames[0])


def write_by_a_stream(app: App, topic: Topic) -> None:
    app.stream("in").to(topic)


def write_by_a_processor(app: App, topic: Topic) -> None:
    app.process("in", forwards=[topic], name="own")(lambda record, topic: None)


def write_by_a_punctuation(app: App, topic: Topic) -> None:
    every, kept = timedelta(minutes=1), app.table("in")
    declare = app.punctuate(every=every, on="stream_time", stores=[kept], forwards=[topic], name="own")
    declare(lambda at_ms, kept, topic: None)


OTHER_WRITERS = pytest.mark.parametrize(
    ("write", "who"),
    [
        (write_by_a_stream, r"`to` .*test_topology\.py, line \d+.*"),
        (write_by_a_processor, "Processor 'own'"),
        (write_by_a_punctuation, "Punctuation 'own'"),
    ],
)
A_PIPELINE: dict[str, Any] = {"reads": "in", "writes": "main", "branches": ["out"], "key": "k", "name": "sums"}


@OTHER_WRITERS
@pytest.mark.parametrize("settings", [{}, {"output_mode": "complete"}, {"result": "stream", "whole_epochs": True}])
@pytest.mark.parametrize("pipeline_first", [True, False])
def test_a_result_that_is_a_table_or_seen_by_whole_epochs_has_no_other_writer(
    write: Callable[[App, Topic], None], who: str, settings: dict[str, Any], pipeline_first: bool
) -> None:
    app = App("app")
    out = app.topic("out", key=serdes.string, value=serdes.json)

    def run() -> None:
        app.pipeline(**A_PIPELINE, **settings)(lambda frame: frame)

    first, second = (run, partial(write, app, out)) if pipeline_first else (partial(write, app, out), run)
    first()
    with pytest.raises(TopologyError, match=rf"^Pipeline 'sums' .*{who} .*both write to 'out'"):
        second()
    topology = app.topology()  # nothing is left of what was refused
    assert bool(topology.pipelines) == pipeline_first
    assert any(p.forwards for s in topology.subtopologies for p in s.processors) != pipeline_first


@OTHER_WRITERS
def test_a_result_that_is_a_stream_may_have_other_writers(write: Callable[[App, Topic], None], who: str) -> None:
    app = App("app")
    out = app.topic("out", key=serdes.string, value=serdes.json)
    app.pipeline(**A_PIPELINE, result="stream")(lambda frame: frame)
    write(app, out)


@pytest.mark.parametrize(
    ("windowing", "says"),
    [
        ("window", "windowing='window'"),
        (Windowing("hopping", "w", 1), "its kind is one of window, session"),  # type: ignore[arg-type]  # that is the mistake
        (Windowing("window", "w", 0), "size_ms=0): its size is whole milliseconds"),
    ],
)
def test_a_windowing_that_is_none_is_refused(windowing: Any, says: str) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(says)):
        App("app").pipeline(reads="in", writes="out", key="k", windowing=windowing)


def keep(record: InputRecord, *views: StoreView) -> None:
    """The functions are no part of it."""


def test_the_digest_of_a_topology_is_the_one_that_other_builds_compute() -> None:
    """Of every kind of store: a word that changed in a description would keep workers of two builds apart."""
    app = App("app")
    source = app.topic("in", key=serdes.string, value=serdes.json)
    common: dict[str, Any] = {"key": serdes.string, "value": serdes.json}
    app.table(source, store="newest")
    app.table(source, store="dated", versioned=timedelta(days=1))
    made = [
        stores.key_value("counts", **common),
        stores.key_value("memory", persistent=False, logged=False, **common),
        stores.window("windows", size=timedelta(minutes=1), retention=timedelta(hours=1), timestamped=True, **common),
        stores.session("visits", retention=timedelta(hours=1), **common),
        stores.versioned("history", history=timedelta(days=1), **common),
    ]
    app.process(source, stores=[app.store(each) for each in made])(keep)
    assert app.topology().digest() == "64a79b2af42ae298"
