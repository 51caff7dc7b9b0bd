"""All topics that a pattern matches as one stream."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stateline import App, serdes
from stateline.cli import target
from stateline.cli.check.run import check
from stateline.config.loading import load_config
from stateline.log import NewTopic, open_log
from stateline.model.topology import Topology
from stateline.testing import TestDriver
from stateline_store import CallerError, ConfigurationError, DoesNotExistError, LogUnavailableError, TopologyError

ORDERS = re.compile(r"orders-.*")
PINNED = {"topology.pattern.topics": "orders-fr, orders-de"}


def orders_app(**config: Any) -> App:
    app = App("shop", config=config)
    orders = app.stream(ORDERS, key=serdes.string, value=serdes.string)
    orders.group_by_key().reduce(lambda reduced, value: reduced + value, "texts")
    orders.to("out")
    return app


def sources(topology: Topology) -> list[list[str]]:
    return [[topic.name for topic in each.sources] for each in topology.subtopologies]


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_rows_of_all_matching_topics_feed_one_store_and_its_position_names_each(guarantee: str) -> None:
    app = orders_app(**PINNED, **{"processing.guarantee": guarantee})
    with TestDriver(app, partitions=3) as driver:
        for topic, value in (("orders-de", "1"), ("orders-fr", "2"), ("orders-de", "3")):
            driver.pipe(topic, "k", value)
        driver.restart()
        driver.crash()
        driver.pipe("orders-fr", "k", "4")
        assert driver.store("texts").get("k") == "1234"
        assert [row.value for row in driver.read("out")] == ["1", "2", "3", "4"]
        assert set(driver.client.get("/v1/stores/texts/keys/k").json()["position"]) == {"orders-de", "orders-fr"}
        assert sources(app.topology()) == [["orders-de", "orders-fr"]]
        with pytest.raises(DoesNotExistError, match="orders-it"):
            driver.pipe("orders-it", "k", "5")


@pytest.mark.parametrize(
    ("partitions", "config"),
    [
        ({"orders-de": 2, "orders-fr": 2}, {}),
        (2, PINNED),
        (2, {"topology.pattern.topics": ["orders-de", "orders-fr"]}),
    ],
)
def test_a_driver_gets_the_topics_from_its_partitions_or_its_settings(
    partitions: int | dict[str, int], config: dict[str, Any]
) -> None:
    app = orders_app()
    with TestDriver(app, partitions=partitions, config=config) as driver:
        driver.pipe("orders-de", "k", "1", partition=1)
        assert sources(app.topology()) == [["orders-de", "orders-fr"]]
    with pytest.raises(TopologyError, match=r"'orders-\.\*' matches no topic\. Create .*topology\.pattern\.topics"):
        TestDriver(app)


def test_one_topic_that_matches_is_enough() -> None:
    with TestDriver(orders_app(), partitions={"orders-de": 1}) as driver:
        driver.pipe("orders-de", "k", "1")
        assert driver.store("texts").get("k") == "1"


def test_the_topics_need_equal_partition_counts() -> None:
    with pytest.raises(TopologyError, match="partitions"):
        TestDriver(orders_app(), partitions={"orders-de": 2, "orders-fr": 3})


def test_the_settings_in_force_replace_those_of_the_app() -> None:
    app = orders_app(**PINNED)
    assert sources(app.topology()) == [["orders-de", "orders-fr"]]
    with TestDriver(app, config={"topology.pattern.topics": "orders-it"}):
        assert sources(app.topology()) == [["orders-it"]]


@pytest.mark.parametrize(
    "name",
    [
        "__orders-x",
        "orders-x-changelog",
        "orders-x-repartition",
        "orders-x-epochs",
        "orders-nodes",
        "orders-pipeline-status",
        "orders-x-subscription-response-topic",
        "orders-KTABLE-FK-JOIN-SUBSCRIPTION-REGISTRATION-0000000004-topic",
    ],
)
def test_internal_topics_never_match(name: str, tmp_path: Path) -> None:
    app = App("orders")
    app.stream(re.compile(".*orders.*")).to("out")
    config = load_config("orders", overrides=[f"state.dir={tmp_path}"], environment={})
    with closing(open_log("embedded", tmp_path)) as log, closing(log.admin()) as admin:
        admin.create_topics([NewTopic(name, 1), NewTopic("orders-de", 1), NewTopic("other-orders-x-changelog", 1)])
    assert sources(app.configured_topology(config)) == [["orders-de"], ["other-orders-x-changelog"]]


def test_a_pattern_matches_full_names(tmp_path: Path) -> None:
    app = App("shop")
    app.stream(re.compile("orders|ORDERS-[a-z]+", re.IGNORECASE)).to("out")
    config = load_config("shop", overrides=[f"state.dir={tmp_path}"], environment={})
    with closing(open_log("embedded", tmp_path)) as log, closing(log.admin()) as admin:
        admin.create_topics([NewTopic(name, 1) for name in ("orders", "old-orders", "orders-de", "orders-1")])
        assert sources(app.configured_topology(config)) == [["orders"], ["orders-de"]]
        admin.create_topics([NewTopic("orders-fr", 1)])
        assert sources(app.topology()) == [["orders"], ["orders-de"]]  # one start, one topology
    assert sources(app.configured_topology(config)) == [["orders"], ["orders-de"], ["orders-fr"]]


def test_a_pattern_that_is_declared_twice_is_one_stream() -> None:
    app = orders_app(**PINNED)
    app.stream(re.compile(r"orders-.*"), key=serdes.string, value=serdes.string).to("copies")
    with TestDriver(app) as driver:
        driver.pipe("orders-de", "k", "1")
        assert [len(driver.read(topic)) for topic in ("out", "copies")] == [1, 1]
    with pytest.raises(TopologyError, match=r"'orders-\.\*' is declared in .*_patterns.py, line \d+, already"):
        app.stream(ORDERS)


def test_a_declared_topic_keeps_its_timestamps() -> None:
    app = App("shop", config=PINNED)
    app.topic("orders-de", key=serdes.string, value=serdes.json, timestamp="at")
    app.stream(ORDERS, key=serdes.string, value=serdes.json).to("out")
    with TestDriver(app) as driver:
        driver.pipe("orders-de", "k", {"at": 7})
        assert [row.timestamp_ms for row in driver.read("out")] == [7]


def by_name(app: App) -> None:
    app.stream("orders-it", key=serdes.string, value=serdes.string).to("copies")


def by_table(app: App) -> None:
    app.table("orders-it")


def by_global_table(app: App) -> None:
    app.global_table("orders-it")


def by_processor(app: App) -> None:
    @app.process("orders-it")
    def ignore(record: object) -> None:
        del record


@pytest.mark.parametrize("read", [by_name, by_table, by_global_table, by_processor])
def test_a_topic_that_is_also_read_by_name_is_refused(read: Callable[[App], None]) -> None:
    app = orders_app(**PINNED)
    read(app)
    with pytest.raises(
        TopologyError,
        match=r"Pattern 'orders-\.\*' will match topic 'orders-it', which has already been registered .*line \d+\)",
    ):
        app.topology()


def other_pattern(app: App) -> None:
    app.stream(re.compile(".*-de")).to("copies")


def other_types(app: App) -> None:
    app.topic("orders-de", key=serdes.string, value=serdes.int64)


def nothing(app: App) -> None:
    del app


@pytest.mark.parametrize(
    ("declare", "topics", "kind", "message"),
    [
        (other_pattern, "orders-de", TopologyError, r"'orders-de' is already matched by .* 'orders-\.\*'"),
        (other_pattern, "orders-fr", TopologyError, r"'\.\*-de' matches no topic of topology\.pattern\.topics"),
        (other_types, "orders-de", TopologyError, r"reads \(string, string\) and matches topic 'orders-de'.*int64"),
        (nothing, "orders-de,invoices", ConfigurationError, "names 'invoices', and no pattern of app.stream matches"),
        (nothing, "orders de", ConfigurationError, "names of topics, separated by commas"),
    ],
)
def test_topics_that_do_not_fit_are_refused(
    declare: Callable[[App], None], topics: str, kind: type[CallerError], message: str
) -> None:
    app = orders_app()
    declare(app)
    with pytest.raises(kind, match=message):
        TestDriver(app, config={"topology.pattern.topics": topics})


@pytest.mark.parametrize(
    "declare",
    [
        lambda app: app.table(ORDERS),
        lambda app: app.global_table(ORDERS),
        lambda app: app.process(ORDERS),
        lambda app: app.stream([ORDERS]),
        lambda app: app.pipeline(reads=[ORDERS], writes="x", key="k"),
    ],
)
def test_only_a_stream_takes_a_pattern(declare: Callable[[App], object]) -> None:
    with pytest.raises(TopologyError, match=r"orders-.* is no topic: only app.stream takes a pattern, alone and not"):
        declare(App("shop"))


def test_a_pattern_of_bytes_is_refused() -> None:
    with pytest.raises(TopologyError, match="topics have names of text"):
        App("shop").stream(re.compile(b"orders"))  # type: ignore[arg-type]


def test_without_settings_the_topics_are_not_known() -> None:
    with pytest.raises(TopologyError, match="are not known without settings"):
        orders_app().topology()


def test_topics_that_are_configured_need_no_log(tmp_path: Path) -> None:
    app, file = orders_app(), tmp_path / "log.db"
    file.write_bytes(b"")  # a log that does not answer
    settings = [f"bootstrap.servers=embedded:{file}", f"state.dir={tmp_path}"]
    app.configure(load_config("shop", overrides=settings, environment={}))
    with pytest.raises(LogUnavailableError, match=r"cannot be looked up: .* name the topics in topology\.pattern"):
        app.topology()
    config = load_config("shop", overrides=settings, environment={}, defaults=PINNED)
    app.configure(config)
    assert [row["topic"] for row in check(app, config).topics if row["role"] == "source"] == ["orders-de", "orders-fr"]


def test_a_start_waits_for_a_log_that_does_not_answer_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app, file = orders_app(), tmp_path / "log.db"
    file.write_bytes(b"")
    settings = [f"bootstrap.servers=embedded:{file}", f"state.dir={tmp_path}"]
    config = load_config("shop", overrides=settings, environment={})
    app.configure(config)

    def answer(seconds: float) -> None:
        assert seconds > 0
        file.unlink()
        with closing(open_log(f"embedded:{file}", tmp_path)) as log, closing(log.admin()) as admin:
            admin.create_topics([NewTopic("orders-de", 1), NewTopic("orders-fr", 1)])

    monkeypatch.setattr(target, "sleep", answer)
    assert target.pattern_topics(app, config) == ["--set", "topology.pattern.topics=orders-de,orders-fr"]
    (told,) = [line for line in caplog.messages if line.startswith("Waiting for the log.")]
    assert "'orders-.*' cannot be looked up" in told


def test_dead_letters_are_no_input_of_a_pattern() -> None:
    settings = {"processing.exception.handler": "dead-letter", "errors.dead.letter.queue.topic.name": "orders-dead"}
    app, calls = App("shop", config=settings), list[str]()

    def fail(key: str, value: str) -> str:
        calls.append(value)
        raise ValueError(value)

    app.stream(re.compile("orders-.*"), key=serdes.string, value=serdes.string).map_values(fail).to("out")
    with TestDriver(app, partitions={"orders-de": 1, "orders-dead": 1, "out": 1}) as driver:
        driver.pipe("orders-de", "k", "v")
        assert calls == ["v"]
        assert len(driver.dead_letters()) == 1
