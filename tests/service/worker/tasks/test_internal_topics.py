"""Stateline's own topics: their names, partitions and settings are Kafka Streams', and a worker creates them."""

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType

from service.worker.faults import CHANGELOG, Place, counting, entries
from stateline import serdes, stores
from stateline.deployment.topics import ensure_topics
from stateline.dsl.app import App
from stateline.log import NewTopic, open_log
from stateline.log.embedded import EmbeddedAdmin
from stateline_store import LogUnavailableError
from support.kafka.shared_broker import SharedBroker


def test_changelog_and_repartition_topics_have_kafka_streams_names_and_settings(
    kafka_broker: SharedBroker, tmp_path: Path
) -> None:
    run = uuid4().hex[:8]
    app = App(f"app-{run}")
    source = app.topic(f"in-{run}", key=serdes.string, value=serdes.string)
    moved = app.repartition("moved", key=serdes.string, value=serdes.string)
    counts = app.store(stores.key_value("counts", key=serdes.string, value=serdes.string))
    app.process(source, forwards=[moved], name="move")(lambda record, moved: None)
    app.process(moved, stores=[counts], name="count")(lambda record, counts: None)
    with closing(open_log(kafka_broker.bootstrap_servers, tmp_path)) as log, closing(log.admin()) as admin:
        admin.create_topics([NewTopic(f"in-{run}", 3)])
        for _ in range(2):  # the second time finds them made
            counted = ensure_topics(app.topology(), admin)
    changelog, repartition = f"app-{run}-counts-changelog", f"app-{run}-moved-repartition"
    assert (counted[changelog], counted[repartition]) == (3, 3)
    assert settings(kafka_broker, changelog) >= {
        ("cleanup.policy", "compact"),
        ("message.timestamp.type", "CreateTime"),
    }
    assert settings(kafka_broker, repartition) >= {("cleanup.policy", "delete"), ("retention.ms", "-1")}


def test_a_worker_that_could_not_create_its_topics_begins_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    create_topics, refused = EmbeddedAdmin.create_topics, list[str]()

    def refuse_twice(admin: EmbeddedAdmin, topics: Iterable[NewTopic], **options: Any) -> None:
        new = list(topics)
        if len(refused) < 2:
            refused.extend(topic.name for topic in new)
            raise LogUnavailableError("It needs too long to create them.")
        create_topics(admin, new, **options)

    app = counting()
    place.send(entries("ab", 2))
    monkeypatch.setattr(EmbeddedAdmin, "create_topics", refuse_twice)
    place.work_off(app, place.config(app), 3)
    assert refused == [CHANGELOG] * 2
    assert sorted(place.changelog()) == [(b"a", b"2"), (b"b", b"2")]
    assert (place.root / "m" / "app" / "topology.json").exists()


def settings(broker: SharedBroker, topic: str) -> set[tuple[str, str]]:
    client = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found = client.describe_configs([resource])[resource].result()
    return {(name, entry.value) for name, entry in found.items()}
