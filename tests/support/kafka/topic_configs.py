"""Changes settings of topics that are there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource


def set_topic_configs(bootstrap_servers: str, topics: Iterable[str], settings: Mapping[str, str]) -> None:
    """Set these of each of the topics; the others stay as they are."""
    entries = [ConfigEntry(k, v, incremental_operation=AlterConfigOpType.SET) for k, v in settings.items()]
    resources = [ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries) for topic in topics]
    if resources:
        admin = AdminClient({"bootstrap.servers": bootstrap_servers})  # one that is let go takes its requests along
        for done in admin.incremental_alter_configs(resources).values():
            done.result(10)
