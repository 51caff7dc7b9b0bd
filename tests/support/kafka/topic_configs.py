"""Changes settings of topics that are there, and deletes what they refuse to delete otherwise."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource

from stateline.log import Admin
from stateline_store import InvalidArgumentError, TopicPartition
from support.run.patience import HANGING_S


def delete_records(bootstrap_servers: str, admin: Admin, before: Mapping[TopicPartition, int]) -> None:
    """Delete the records of each partition before this offset, of compacted topics as well: their policy is changed
    first, which a broker obeys a moment later."""
    set_topic_configs(bootstrap_servers, {place.topic for place in before}, {"cleanup.policy": "compact,delete"})
    until_s = time.monotonic() + HANGING_S
    while True:
        try:
            return admin.delete_records(before)
        except InvalidArgumentError as error:
            if "Policy violation" not in str(error) or time.monotonic() > until_s:
                raise
            time.sleep(0.02)


def set_topic_configs(bootstrap_servers: str, topics: Iterable[str], settings: Mapping[str, str]) -> None:
    """Set these of each of the topics; the others stay as they are."""
    entries = [ConfigEntry(k, v, incremental_operation=AlterConfigOpType.SET) for k, v in settings.items()]
    resources = [ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries) for topic in topics]
    if resources:
        admin = AdminClient({"bootstrap.servers": bootstrap_servers})  # one that is let go takes its requests along
        for done in admin.incremental_alter_configs(resources).values():
            done.result(10)
