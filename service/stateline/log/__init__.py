"""The log: topics of partitions of records, on Apache Kafka (`kafka`) or in one embedded file (`embedded`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stateline.config.embedded import embedded_path
from stateline.log.interface import (
    Admin,
    AssignmentListener,
    Consumer,
    Headers,
    Log,
    NewTopic,
    Producer,
    Record,
    TopicInfo,
)

__all__ = [
    "Admin",
    "AssignmentListener",
    "Consumer",
    "Headers",
    "Log",
    "NewTopic",
    "Producer",
    "Record",
    "TopicInfo",
    "open_log",
]


def open_log(
    bootstrap_servers: str,
    state_dir: Path,
    *,
    consumer: Mapping[str, str] | None = None,
    producer: Mapping[str, str] | None = None,
    admin: Mapping[str, str] | None = None,
    session_timeout_ms: int = 45_000,
    max_poll_interval_ms: int = 300_000,
    transaction_timeout_ms: int = 60_000,
    replication_factor: int = -1,
    sync: bool = False,
    read_only: bool = False,
) -> Log:
    """The log that the setting `bootstrap.servers` names.

    What is no `embedded_path` is a list of Kafka brokers. What only Kafka knows, the embedded log ignores: the three
    mappings, `max_poll_interval_ms`, `replication_factor`. `sync` is the embedded log's alone, and so is `read_only`,
    for who only asks its admin: the file is left as it is then, and needs no right to write. Raises as `EmbeddedLog`
    does; Kafka is not asked before the first call.
    """
    # Either is loaded when a process opens one: a server does for its first change feed only.
    if (path := embedded_path(bootstrap_servers, state_dir)) is not None:
        from stateline.log.embedded import EmbeddedLog

        return EmbeddedLog(
            path, session_timeout_ms=session_timeout_ms, transaction_timeout_ms=transaction_timeout_ms, sync=sync,
            read_only=read_only,
        )  # fmt: skip
    from stateline.log.kafka import KafkaLog

    return KafkaLog(
        bootstrap_servers, consumer=consumer, producer=producer, admin=admin, session_timeout_ms=session_timeout_ms,
        max_poll_interval_ms=max_poll_interval_ms, transaction_timeout_ms=transaction_timeout_ms,
        replication_factor=replication_factor,
    )  # fmt: skip
