"""Three Kafka brokers on this machine, each topic on all of them: a record counts as written when two have it."""

from __future__ import annotations

import base64
import time
import uuid
from types import TracebackType

from confluent_kafka import ElectionType, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from support.kafka.kafka_broker import KafkaBroker
from support.processes.ports import free_port
from support.run.patience import HANGING_S

BROKERS = 3
_REPLICATION = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "3000",
}


class KafkaCluster:
    """Runs from the constructor until `close`, or until the `with` block is left."""

    def __init__(self) -> None:
        ports = [(free_port(), free_port()) for _ in range(BROKERS)]
        voters = ",".join(f"{node}@127.0.0.1:{controller}" for node, (_, controller) in enumerate(ports, 1))
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self.brokers: list[KafkaBroker] = []
        try:
            for node, pair in enumerate(ports, 1):
                settings = {**_REPLICATION, "node.id": str(node), "controller.quorum.voters": voters}
                self.brokers.append(KafkaBroker("384m", settings, ports=pair, cluster_id=cluster_id))
            self.bootstrap_servers = ",".join(broker.bootstrap_servers for broker in self.brokers)
            self._admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
            self.wait_until_whole()
        except BaseException:
            self.close()
            raise

    def leader_of(self, topic: str, partition: int = 0) -> int:
        """Which of `brokers` leads a partition; -1 while none does."""
        described = self._admin.describe_topics(TopicCollection([topic]))[topic].result(60)
        leader = described.partitions[partition].leader
        return -1 if leader is None else leader.id - 1

    def give_back_leaders(self) -> None:
        """Let each partition be led by the broker that was meant to: it moves back there."""
        self._admin.elect_leaders(ElectionType.PREFERRED, None).result(60)

    def wait_until_whole(self) -> None:
        """Wait until all brokers are there and have every record."""
        deadline = time.monotonic() + HANGING_S
        while not self._is_whole():
            if time.monotonic() > deadline:
                raise TimeoutError(f"The brokers were not together again within {HANGING_S:g} s.")
            time.sleep(0.1)

    def _is_whole(self) -> bool:
        try:
            found = self._admin.list_topics(timeout=2)
        except KafkaException:
            return False
        partitions = [p for topic in found.topics.values() for p in topic.partitions.values()]
        return len(found.brokers) == BROKERS and all(len(p.isrs) == len(p.replicas) for p in partitions)

    def close(self) -> None:
        for broker in self.brokers:
            broker.close()

    def __enter__(self) -> KafkaCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
