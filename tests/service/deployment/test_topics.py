"""The topics that are missing are named by what they are for."""

from contextlib import closing
from pathlib import Path

import pytest

from stateline import serdes
from stateline.deployment.topics import ensure_topics
from stateline.dsl.app import App
from stateline.log import NewTopic, open_log
from stateline_store import TopologyError


def test_missing_topics_are_named_by_what_they_are_for(tmp_path: Path) -> None:
    app = App("shop")
    orders = app.topic("orders", key=serdes.string, value=serdes.json)
    large = app.topic("large", key=serdes.string, value=serdes.json)
    app.table("prices", key=serdes.string, value=serdes.json)
    app.process(orders, forwards=[large], name="pick")(lambda order, large: None)

    def missing() -> str:
        with pytest.raises(TopologyError) as caught:
            ensure_topics(app.topology(), admin, also_required=["dlq"])
        return str(caught.value).partition(". Create")[0]

    dead = "dead-letter topic: dlq (errors.dead.letter.queue.topic.name)"
    with closing(open_log("embedded", tmp_path)) as log, closing(log.admin()) as admin:
        assert missing() == f"Missing source topics: orders, prices; output topic: large; {dead}"
        admin.create_topics([NewTopic(name, 1) for name in ("orders", "prices", "large")])
        assert missing() == f"Missing {dead}"
        admin.create_topics([NewTopic("dlq", 1)])
        assert ensure_topics(app.topology(), admin, also_required=["dlq"])["orders"] == 1


def test_a_repartition_topic_with_another_count_than_declared_is_refused(tmp_path: Path) -> None:
    def declared(partitions: int | None) -> App:
        app = App("shop")
        orders = app.stream("orders", key=serdes.string, value=serdes.json).select_key(lambda key, order: order["city"])
        orders.repartition("by-city", partitions=partitions).group_by_key().count("orders_in")
        return app

    with closing(open_log("embedded", tmp_path)) as log, closing(log.admin()) as admin:
        admin.create_topics([NewTopic("orders", 1)])
        assert ensure_topics(declared(2).topology(), admin)["shop-by-city-repartition"] == 2
        assert ensure_topics(declared(None).topology(), admin)["shop-by-city-repartition"] == 2
        with pytest.raises(TopologyError, match="shop-by-city-repartition has 2 partitions, and 4 are declared"):
            ensure_topics(declared(4).topology(), admin)
