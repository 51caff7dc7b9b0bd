"""Topics, stores and answers with schemas of a real registry: what confluent-kafka's producers write as schemas change,
a worker keeps, answers have, and confluent-kafka reads from changelogs. Kafka and Apicurio Registry are real."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from service.serde.shop import ORDER_JSON, order_message
from stateline import App, InputRecord, StoreView, serdes, stores
from stateline.log import open_log
from stateline.worker.loop.worker import Worker
from stateline_store import RecordError
from support.kafka.kafka_broker import needed
from support.kafka.shared_broker import SharedBroker
from support.processes.running_worker import configured, create, running
from support.processes.served_here import served_here
from support.registry.apicurio import schema_registry, unpacked
from support.run.patience import HANGING_S

_FIELDS: list[dict[str, Any]] = [{"name": "city", "type": "string"}, {"name": "amount", "type": "long"}]
_SALE: dict[str, Any] = {"type": "record", "name": "Sale", "namespace": "shop", "fields": _FIELDS}
_NOTE: dict[str, Any] = {"name": "note", "type": "string", "default": "none"}
_NEWER: dict[str, Any] = {**_SALE, "fields": [*_FIELDS, _NOTE]}
_OTHER: dict[str, Any] = {**_SALE, "fields": [*_FIELDS, {"name": "shop", "type": "string"}]}
_TOTAL: dict[str, Any] = {
    "type": "record",
    "name": "Total",
    "namespace": "shop",
    "fields": [{"name": "amount", "type": "long"}, {"name": "last", "type": _NEWER}],
}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its URL."""
    with schema_registry(needed(unpacked), tmp_path_factory.mktemp("registry")) as url:
        yield url


def send(broker: SharedBroker, topic: str, serializer: Callable[..., bytes | None], *values: Any) -> None:
    """As an application of others does, with confluent-kafka alone; under the keys ann, bob, …"""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for key, value in zip(("ann", "bob", "cleo"), values, strict=False):
        producer.produce(topic, serializer(value, SerializationContext(topic, MessageField.VALUE)), key)
    producer.flush()


def shop(registry: str, schema: dict[str, Any]) -> App:
    """Its topic, of which a table is kept and sums are made, is its own."""
    app = App(f"shop-{uuid4().hex[:8]}", config={"schema.registry.url": registry})
    sales = app.topic(f"{app.application_id}-sales", key=serdes.string, value=serdes.avro(schema))
    app.table(sales, store="sales")
    totals = app.store(stores.key_value("totals", key=serdes.string, value=serdes.avro(_TOTAL)))

    @app.process(sales, stores=[totals])
    def add_up(sale: InputRecord, totals: StoreView) -> None:
        before = totals.get(sale.key) or {"amount": 0}
        totals.put(sale.key, {"amount": before["amount"] + sale.value["amount"], "last": sale.value})

    return app


def changelog(broker: SharedBroker, topic: str, read: AvroDeserializer) -> dict[str, Any]:
    """The newest value of each key, as confluent-kafka reads it."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    consumer.subscribe([topic])
    found = {}
    while True:
        message = consumer.poll(HANGING_S)
        assert message is not None, f"nothing comes of {topic}"
        if message.error():  # its end
            break
        key = message.key()
        assert key is not None, "each has one"
        found[key.decode()] = read(message.value(), SerializationContext(topic, MessageField.VALUE))
    consumer.close()
    return found


def test_schemas_change_under_a_table_and_a_processor_and_everyone_reads_on(
    kafka_broker: SharedBroker, registry: str, tmp_path: Path
) -> None:
    app, client = shop(registry, _NEWER), SchemaRegistryClient({"url": registry})
    topic = f"{app.application_id}-sales"
    config = configured(app, tmp_path, bootstrap__servers=kafka_broker.bootstrap_servers)
    log = open_log(kafka_broker.bootstrap_servers, tmp_path)
    create(log, {topic: 1})
    older, newer = (AvroSerializer(client, json.dumps(each)) for each in (_SALE, _NEWER))
    settings = [f"bootstrap.servers={kafka_broker.bootstrap_servers}"]
    with running(app, config, log), served_here(tmp_path, *settings, app=app) as here:
        send(kafka_broker, topic, older, {"city": "Bern", "amount": 4}, {"city": "Rome", "amount": 5})
        send(kafka_broker, topic, newer, {"city": "Bern", "amount": 9, "note": "rush"})
        bound: dict[str, str | int] = {"position_bound": json.dumps({topic: {"0": 2}}), "wait_ms": 60_000}
        entries = here.client.get("/v1/stores/sales/range", params=bound).json()["entries"]
        assert {entry["key"]: entry["value"] for entry in entries} == {
            "ann": {"city": "Bern", "amount": 9, "note": "rush"},
            "bob": {"city": "Rome", "amount": 5, "note": "none"},
        }
        total = here.client.get("/v1/stores/totals/keys/ann", params=bound).json()["value"]
        assert total == {"amount": 13, "last": {"city": "Bern", "amount": 9, "note": "rush"}}
    read = changelog(kafka_broker, f"{app.application_id}-totals-changelog", AvroDeserializer(client))
    assert read["ann"] == total
    assert client.get_latest_version(f"{app.application_id}-totals-changelog-value").version == 1
    assert len(client.get_versions(f"{topic}-value")) == 2
    log.close()


def test_a_schema_that_cannot_read_what_is_there_is_refused_and_the_field_is_named(
    kafka_broker: SharedBroker, registry: str, tmp_path: Path
) -> None:
    app = shop(registry, _OTHER)
    topic = f"{app.application_id}-sales"
    config = configured(app, tmp_path, bootstrap__servers=kafka_broker.bootstrap_servers)
    log = open_log(kafka_broker.bootstrap_servers, tmp_path)
    create(log, {topic: 1})
    send(kafka_broker, topic, AvroSerializer(SchemaRegistryClient({"url": registry}), json.dumps(_SALE)), _sale(4))
    with pytest.raises(RecordError, match=r"cannot be read as avro\(shop\.Sale\): No default value for field shop"):
        Worker(app, config, log, instance="worker-0").run()
    log.close()


def test_who_asks_for_a_key_registers_nothing_and_finds_what_java_wrote_with_the_schema_that_is_declared(
    kafka_broker: SharedBroker, registry: str, tmp_path: Path
) -> None:
    text = {"type": "string", "avro.java.string": "String"}
    app = App(f"keys-{uuid4().hex[:8]}", config={"schema.registry.url": registry})
    topic, client = f"{app.application_id}-in", SchemaRegistryClient({"url": registry})
    for name, schema in (("java", text), ("plain", "string")):
        app.table(app.topic(f"{topic}-{name}", key=serdes.avro(json.dumps(schema)), value=serdes.string), store=name)
    config = configured(app, tmp_path, bootstrap__servers=kafka_broker.bootstrap_servers)
    log = open_log(kafka_broker.bootstrap_servers, tmp_path)
    create(log, {f"{topic}-{name}": 1 for name in ("java", "plain")})
    keys, producer = (
        AvroSerializer(client, json.dumps(text)),
        Producer({"bootstrap.servers": kafka_broker.bootstrap_servers}),
    )
    for name in ("java", "plain"):
        context = SerializationContext(f"{topic}-{name}", MessageField.KEY)
        producer.produce(f"{topic}-{name}", b"Bern", keys("ann", context))
    producer.flush()
    before = client.get_subjects()
    with (
        running(app, config, log),
        served_here(tmp_path, f"bootstrap.servers={kafka_broker.bootstrap_servers}", app=app) as here,
    ):
        bound: dict[str, str | int] = {"wait_ms": 60_000, "position_bound": json.dumps({f"{topic}-java": {"0": 0}})}
        assert here.client.get("/v1/stores/java/keys/ann", params=bound).json()["value"] == "Bern"
        other = here.client.get("/v1/stores/plain/keys/ann")
        assert other.status_code == 422
        assert f"not registered for keys of {topic}-plain" in other.json()["detail"]
    assert client.get_subjects() == before
    assert client.get_versions(f"{topic}-plain-key") == [1]
    log.close()


def test_protobuf_and_json_schema_are_read_from_a_real_registry_too(
    kafka_broker: SharedBroker, registry: str, tmp_path: Path
) -> None:
    app = App(f"both-{uuid4().hex[:8]}", config={"schema.registry.url": registry})
    message, newer = order_message(), order_message(with_note=True)
    names = {kind: f"{app.application_id}-{kind}" for kind in ("protobuf", "json")}
    app.table(app.topic(names["protobuf"], key=serdes.string, value=serdes.protobuf(message)), store="protobuf")
    app.table(app.topic(names["json"], key=serdes.string, value=serdes.json_schema(ORDER_JSON)), store="json")
    config = configured(app, tmp_path, bootstrap__servers=kafka_broker.bootstrap_servers)
    log = open_log(kafka_broker.bootstrap_servers, tmp_path)
    create(log, dict.fromkeys(names.values(), 1))
    client = SchemaRegistryClient({"url": registry})
    send(kafka_broker, names["protobuf"], ProtobufSerializer(newer, client), newer(amount=3, note="rush"))
    send(kafka_broker, names["json"], JSONSerializer(json.dumps(ORDER_JSON), client), {"amount": 3})
    settings = [f"bootstrap.servers={kafka_broker.bootstrap_servers}"]
    with running(app, config, log), served_here(tmp_path, *settings, app=app) as here:
        for kind, topic in names.items():
            bound: dict[str, str | int] = {"position_bound": json.dumps({topic: {"0": 0}}), "wait_ms": 60_000}
            assert here.client.get(f"/v1/stores/{kind}/keys/ann", params=bound).json()["value"] == {"amount": 3}
    log.close()


def _sale(amount: int) -> dict[str, Any]:
    return {"city": "Bern", "amount": amount}
