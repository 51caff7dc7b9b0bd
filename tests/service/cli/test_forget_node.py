"""`stateline node forget`: nodes that died are known no more, and those that may live stay."""

from __future__ import annotations

import socket
from contextlib import closing
from uuid import uuid4

import pytest

from stateline.cli.nodes.known import forget_node
from stateline.config.loading import load_config
from stateline.config.settings import Config
from stateline.deployment.nodes_topic import NodeEntry, ensure_nodes_topic, known_nodes, say_node
from stateline.log import Log
from stateline.log.kafka import KafkaLog
from stateline_store import DoesNotExistError, InvalidArgumentError
from support.kafka.shared_broker import SharedBroker
from support.processes.ports import free_port
from support.run.patience import HANGING_S


def configured(*settings: str) -> Config:
    return load_config(f"app-{uuid4().hex[:8]}", environment={}, overrides=settings)


def say(log: Log, config: Config, node: str, peer: str, directory: str = "d1") -> None:
    with closing(log.admin()) as admin:
        ensure_nodes_topic(config.application_id, admin)
    say_node(log, config.application_id, node, NodeEntry("", peer, directory, "1.0", "t"))


def test_a_node_that_died_is_forgotten_and_the_others_stay(kafka_broker: SharedBroker) -> None:
    config = configured(f"bootstrap.servers={kafka_broker.bootstrap_servers}")
    with closing(KafkaLog(kafka_broker.bootstrap_servers)) as log:
        for node in ("gone", "other"):
            say(log, config, node, f"127.0.0.1:{free_port()}")
        forget_node(config, "gone")
        assert set(known_nodes(log, config.application_id)) == {"other"}
        with pytest.raises(DoesNotExistError, match="No node 'gone' is known; there are other"):
            forget_node(config, "gone")


def test_a_node_that_answers_stays(kafka_broker: SharedBroker) -> None:
    config = configured(f"bootstrap.servers={kafka_broker.bootstrap_servers}")
    with closing(KafkaLog(kafka_broker.bootstrap_servers)) as log, socket.create_server(("127.0.0.1", 0)) as listener:
        say(log, config, "here", f"127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(InvalidArgumentError, match="may live: 127"):
            forget_node(config, "here")
        assert set(known_nodes(log, config.application_id)) == {"here"}


def test_a_node_whose_worker_is_in_the_group_stays(kafka_broker: SharedBroker) -> None:
    config = configured(f"bootstrap.servers={kafka_broker.bootstrap_servers}")
    with closing(KafkaLog(kafka_broker.bootstrap_servers)) as log:
        say(log, config, "works", "", directory="0815")
        group = config.application_id
        with closing(log.consumer(group, instance_id="works-w", client_id=f"{group}-0815-w")) as consumer:
            consumer.subscribe([f"{group}-nodes"], lambda _: None, lambda _: None)
            with closing(log.admin()) as admin:
                for _ in range(int(HANGING_S / 0.1)):
                    consumer.poll(1, 0.1)
                    if admin.members(group):
                        break
            with pytest.raises(InvalidArgumentError, match="may live: works-w is in the group"):
                forget_node(config, "works")


def test_an_embedded_log_has_no_nodes() -> None:
    with pytest.raises(InvalidArgumentError, match="no nodes to forget"):
        forget_node(configured("bootstrap.servers=embedded"), "any")
