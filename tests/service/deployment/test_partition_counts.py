"""Which topics may have more partitions than were counted."""

from __future__ import annotations

from typing import Any

import pytest

from stateline import serdes, stores
from stateline.deployment.partition_counts import PartitionsChangedError, counted_topics, refuse_grown
from stateline.dsl.app import App
from stateline.log.interface import TopicInfo

TEXT: dict[str, Any] = {"key": serdes.string, "value": serdes.string}
NAMES = ("stored", "tabled", "everywhere", "passed-on")


def made() -> App:
    app = App("app")
    app.process("stored", stores=[app.store(stores.key_value("kept", **TEXT))], name="keep")(lambda record, kept: None)
    app.table("tabled", **TEXT)
    app.global_table("everywhere", **TEXT)
    app.process("passed-on", name="pass")(lambda record: None)
    return app


BEFORE = {name: TopicInfo(name, 2, "one") for name in NAMES}


@pytest.mark.parametrize(("topic", "store"), [("stored", "kept"), ("tabled", "tabled"), ("everywhere", "everywhere")])
def test_a_topic_of_which_something_is_kept_by_key_may_not_grow(topic: str, store: str) -> None:
    with pytest.raises(PartitionsChangedError, match=f"Topic {topic} has 3 partitions, and had 2 when {store}") as said:
        refuse_grown(made().topology(), BEFORE, {**BEFORE, topic: TopicInfo(topic, 3, "one")})
    assert said.value.reasons.keys() == {store}


def test_others_may_and_so_may_one_that_was_made_anew() -> None:
    topology = made().topology()
    now = {**BEFORE, "passed-on": TopicInfo("passed-on", 3, "one"), "tabled": TopicInfo("tabled", 3, "another")}
    refuse_grown(topology, BEFORE, now)
    counted = counted_topics(topology, now, BEFORE)
    assert {name: info.partitions for name, info in counted.items()} == {"stored": 2, "tabled": 3, "everywhere": 2}


def test_a_broker_that_has_not_heard_of_all_partitions_is_not_believed() -> None:
    topology, behind = made().topology(), {**BEFORE, "stored": TopicInfo("stored", 1, "one")}
    refuse_grown(topology, BEFORE, behind)
    assert counted_topics(topology, behind, BEFORE)["stored"].partitions == 2
