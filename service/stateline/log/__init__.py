"""The log: topics of partitions of records, on Apache Kafka (`kafka`) or in one embedded file (`embedded`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stateline.config.embedded import embedded_path
from stateline.log.interface import Admin, Consumer, Log, NewTopic, Producer, Record, TopicInfo

__all__ = ["Admin", "Consumer", "Log", "NewTopic", "Producer", "Record", "TopicInfo", "open_log"]


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
    """Open the log that the setting `bootstrap.servers` names: an embedded file (`embedded_path`) or Kafka brokers.
    Only Kafka uses the three mappings, `max_poll_interval_ms` and `replication_factor`. Only the embedded log uses
    `sync` and `read_only`. A `read_only` log serves its admin, and needs no right to write. Kafka is not contacted
    before the first call. Raises the errors of `EmbeddedLog`."""
    # Imported here, since a server opens a log only for its first change feed.
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
