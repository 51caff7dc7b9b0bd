"""What a login may not do on a real broker, and one that is refused: the caller's mistake, which no retry mends. The
broker makes topics that it is asked for, which nobody wants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from stateline import serdes
from stateline.config.loading import load_config
from stateline.config.settings import PASSED_ON
from stateline.deployment.nodes_topic import NodeEntry
from stateline.dsl.app import App
from stateline.log import NewTopic
from stateline.log import kafka_admin as admin_module
from stateline.log import kafka_producer as producer_module
from stateline.log.kafka import KafkaLog
from stateline.server.nodes import registry as registry_module
from stateline.server.nodes.registry import Registry
from stateline.worker.loop.worker import Worker
from stateline_store import ConfigurationError, DoesNotExistError, StatelineError, TopicPartition, TopologyError
from support.kafka.kafka_broker import KafkaBroker, needed
from support.log.log_bench import until
from support.processes.ports import free_port
from support.processes.running_worker import configured
from support.run.length import long_only

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


class Guarded:
    """A broker with a second listener, where `alice` logs in. Over the first one everything may be done."""

    def __init__(self) -> None:
        self.port = free_port()
        plain, control = "PLAINTEXT://127.0.0.1:{broker_port}", "CONTROLLER://127.0.0.1:{controller_port}"
        settings = {
            "listeners": f"{plain},{control},SASL://127.0.0.1:{self.port}",
            "advertised.listeners": f"{plain},SASL://127.0.0.1:{self.port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl.plain.sasl.jaas.config": f'{PLAIN} required user_alice="right";',
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
            "super.users": "User:ANONYMOUS",
            "auto.create.topics.enable": "true",
        }
        self.broker = KafkaBroker("384m", settings)
        self._acls = AdminClient({"bootstrap.servers": self.broker.bootstrap_servers})

    def topic(self, partitions: int = 1) -> str:
        name = f"t-{uuid4().hex[:8]}"
        with closing(KafkaLog(self.broker.bootstrap_servers).admin()) as admin:
            admin.create_topics([NewTopic(name, partitions)])
        return name

    def deny(self, kind: ResourceType, name: str, operation: AclOperation = AclOperation.ALL) -> str:
        """Alice may not do this with it, but everything else; its name."""
        alice = (kind, name, ResourcePatternType.LITERAL, "User:alice", "*")
        acls = [AclBinding(*alice, operation, AclPermissionType.DENY)]
        acls.append(AclBinding(*alice, AclOperation.ALL, AclPermissionType.ALLOW))  # a denial is stronger
        for future in self._acls.create_acls(acls).values():
            future.result()
        return name

    def allow(self, kind: ResourceType, name: str) -> None:
        """What `deny` has said of it holds no more."""
        anything = (ResourcePatternType.LITERAL, "User:alice", "*", AclOperation.ANY, AclPermissionType.ANY)
        for future in self._acls.delete_acls([AclBindingFilter(kind, name, *anything)]).values():
            future.result()

    def log(self, password: str = "right", mechanism: str = "PLAIN") -> KafkaLog:
        login = self.login(password, mechanism)
        return KafkaLog(f"127.0.0.1:{self.port}", consumer=login, producer=login, admin=login)

    def login(self, password: str = "right", mechanism: str = "PLAIN") -> dict[str, str]:
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": "alice",
            "sasl.password": password,
        }


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    made = needed(Guarded)
    with made.broker:
        yield made


def read(log: KafkaLog, topic: str, group: str) -> None:
    """Read as a member of the group until that raises."""
    with closing(log.consumer(group)) as consumer:
        consumer.subscribe([topic], lambda _: None, lambda _: None)
        until(lambda: bool(consumer.poll(10, 0.1)))


def write(log: KafkaLog, topic: str, transactional_id: str | None = None) -> None:
    with closing(log.producer(transactional_id)) as producer:
        if transactional_id:
            producer.init_transactions()
            producer.begin_transaction()
        producer.produce(topic, b"k", b"v", timestamp_ms=1)
        producer.flush()


def test_with_its_rights_a_login_reads_and_writes(guarded: Guarded) -> None:
    topic = guarded.topic()
    write(guarded.log(), topic)
    read(guarded.log(), topic, uuid4().hex)


def test_what_a_login_may_not_do_is_named(guarded: Guarded) -> None:
    topic, log = guarded.topic(), guarded.log()
    unread = guarded.deny(ResourceType.TOPIC, guarded.topic(), AclOperation.READ)
    unwritten = guarded.deny(ResourceType.TOPIC, guarded.topic(), AclOperation.WRITE)
    group = guarded.deny(ResourceType.GROUP, "closed")
    identity = guarded.deny(ResourceType.TRANSACTIONAL_ID, "closed")
    guarded.deny(ResourceType.BROKER, "kafka-cluster", AclOperation.CREATE)
    uncreated = guarded.deny(ResourceType.TOPIC, "uncreated", AclOperation.CREATE)
    tried: list[tuple[Callable[[], Any], str]] = [
        (lambda: read(log, topic, group), "Group authorization failed"),
        (lambda: read(log, unread, uuid4().hex), "Topic authorization failed"),
        (lambda: write(log, unwritten), "Topic authorization failed"),
        (lambda: write(log, unwritten, "open"), "Topic authorization failed"),
        (lambda: write(log, topic, identity), "Transactional Id authorization failed"),
        (lambda: log.admin().create_topics([NewTopic(uncreated, 1)]), "Authorization failed"),
    ]
    for call, said in tried:
        with pytest.raises(ConfigurationError, match=said) as raised:
            call()
        assert "Give the login that right in Kafka" in str(raised.value)


def test_outside_of_transactions_records_of_a_topic_that_may_not_be_written_can_be_left_out(guarded: Guarded) -> None:
    topic, log = guarded.topic(), guarded.log()
    unwritten = guarded.deny(ResourceType.TOPIC, guarded.topic(), AclOperation.WRITE)
    told: list[tuple[str, bytes | None, StatelineError]] = []
    with closing(log.producer()) as producer:
        producer.leave_out([unwritten], lambda *what: told.append(what))
        for n in range(3):
            producer.produce(topic, b"k%d" % n, b"v", timestamp_ms=1)
            producer.produce(unwritten, b"k%d" % n, b"v", timestamp_ms=1)
        assert producer.flush() == {TopicPartition(topic, 0): 2}
    assert [(name, key) for name, key, _ in told] == [(unwritten, b"k0"), (unwritten, b"k1"), (unwritten, b"k2")]
    assert all("Topic authorization failed" in str(why) for _, _, why in told)
    with closing(log.producer("leaves-out")) as producer:
        producer.init_transactions()
        producer.leave_out([unwritten], lambda *what: told.append(what))
        producer.begin_transaction()
        producer.produce(unwritten, b"k", b"v", timestamp_ms=1)
        with pytest.raises(ConfigurationError):
            producer.flush()
    assert len(told) == 3


@pytest.mark.parametrize(
    ("login", "said"),
    [
        (("wrong", "PLAIN"), "Invalid username or password"),
        pytest.param(("right", "SCRAM-SHA-256"), "mechanism", marks=long_only("a wrong password is told the same way")),
    ],
    ids=["password", "mechanism"],
)
def test_a_login_that_is_refused_is_told_by_each_client(
    guarded: Guarded, login: tuple[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (admin_module, producer_module):
        monkeypatch.setattr(module, "CALL_TIMEOUT_S", 2.0)
    topic, log = guarded.topic(), guarded.log(*login)
    calls: list[Callable[[], Any]] = [
        lambda: log.admin().topics(),
        lambda: read(log, topic, uuid4().hex),
        lambda: write(log, topic),
        lambda: write(log, topic, uuid4().hex),
    ]
    for call in calls:
        with pytest.raises(ConfigurationError, match="refuses the login") as raised:
            call()
        assert said in str(raised.value)


def counting_starts(guarded: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: str) -> Worker:
    app = App(f"app-{uuid4().hex[:8]}")
    app.table(app.topic(topic, key=serdes.string, value=serdes.string), store="kept")
    guarded.deny(ResourceType.GROUP, app.application_id)
    monkeypatch.setattr(Worker, "start_over", lambda *_: pytest.fail("The worker tried again."))
    return Worker(app, configured(app, tmp_path), guarded.log(), instance="worker-0")


def test_a_worker_without_a_right_ends_at_once(
    guarded: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = counting_starts(guarded, tmp_path, monkeypatch, guarded.topic())
    with pytest.raises(ConfigurationError, match="Group authorization failed"):
        worker.run()


def test_a_topic_that_the_login_may_not_see_is_missing_to_a_worker(
    guarded: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = guarded.deny(ResourceType.TOPIC, guarded.topic())
    worker = counting_starts(guarded, tmp_path, monkeypatch, hidden)
    with pytest.raises(TopologyError, match=f"Missing source topic: {hidden}"):
        worker.run()


@pytest.mark.parametrize("operation", [AclOperation.READ, AclOperation.WRITE])
def test_a_node_without_a_right_to_the_registry_says_so_once_and_joins_when_it_has_it(
    guarded: Guarded, operation: AclOperation, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(registry_module, "_RETRY_S", 0.05)
    name = f"app-{uuid4().hex[:8]}"
    clients = [f"{each}.{key}={value}" for each in PASSED_ON[:3] for key, value in guarded.login().items()]
    config = load_config(name, environment={}, overrides=[f"bootstrap.servers=127.0.0.1:{guarded.port}", *clients])
    topic = guarded.deny(ResourceType.TOPIC, f"{name}-nodes", operation)
    told: list[str] = []
    faults: list[str] = []
    entry = NodeEntry("", "", "d", "1.0", "t")
    registry = Registry(config, name, "one", entry, lambda node, *_: told.append(node), faults.append)
    registry.start()
    try:
        until(lambda: bool(faults))
        assert faults[0].startswith("Other nodes cannot be looked for: ")
        assert "authorization failed" in faults[0]
        guarded.allow(ResourceType.TOPIC, topic)
        until(lambda: "one" in told)
        assert faults == [faults[0], ""]
        assert caplog.text.count("Other nodes cannot be looked for") == 1
    finally:
        registry.stop()


def test_who_asks_for_a_topic_does_not_make_it(guarded: Guarded) -> None:
    log, name = KafkaLog(guarded.broker.bootstrap_servers), f"t-{uuid4().hex[:8]}"
    with closing(log.admin()) as admin, closing(log.producer()) as producer:
        with pytest.raises(DoesNotExistError, match=name):
            admin.watermarks(TopicPartition(name, 0))
        with pytest.raises(DoesNotExistError, match=name):
            producer.produce(name, b"k", b"v", timestamp_ms=1)
        with pytest.raises(DoesNotExistError, match=name):
            admin.committed_ends([TopicPartition(name, 0), TopicPartition(guarded.topic(), 0)])
        with pytest.raises(DoesNotExistError):
            admin.watermarks(TopicPartition("t" * 600, 0))
        assert admin.topics([name]) == {}
        assert name not in admin.topics()


@pytest.mark.parametrize("count", [1, 3, 9])
def test_of_other_topics_nothing_is_asked(guarded: Guarded, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """But for many: there is a request for one, and one for all."""
    asked: list[str | None] = []
    given = AdminClient.list_topics

    def told(admin: AdminClient, topic: str | None = None, **terms: Any) -> Any:
        asked.append(topic)
        return given(admin, topic, **terms)

    monkeypatch.setattr(AdminClient, "list_topics", told)
    names = [guarded.topic(partitions=2) for _ in range(count)]
    partitions = [TopicPartition(name, number) for name in names for number in range(2)]
    with closing(KafkaLog(guarded.broker.bootstrap_servers).admin()) as admin:
        asked.clear()
        assert admin.committed_ends(partitions) == dict.fromkeys(partitions, 0)
        assert Counter(asked) == Counter([None] if count == 9 else names)
        with pytest.raises(DoesNotExistError, match=f"{names[-1]}-2"):
            admin.committed_ends([*partitions, TopicPartition(names[-1], 2)])
