"""SQL asked of three nodes on hosts of their own, over a Kafka broker, while records come in: the rows are those of the
same statement over plain tables of the input up to the Position of each table.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import httpx
import pytest

from support.kafka.kafka_broker import KafkaBroker
from support.oracles.sql_scene import SqlDeployment, SqlScene, check_statements
from support.processes import hosts
from support.processes.host_nodes import make_nodes
from support.processes.hosts import network
from support.run.length import long_only
from support.run.patience import HANGING_S

MISSING = hosts.missing()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
EXAMPLES = 2_000
SETTINGS = [
    "default.state.isolation.level=read_committed",
    "commit.interval.ms=200",
    "server.wait.max.ms=60000",
    "sql.timeout.ms=120000",
    "session.timeout.ms=10000",
    "server.scan.processes=1",
]


@long_only("test_node_faults.py asks three nodes for SQL, and test_sql_oracle.py has these statements on one")
def test_rows_are_those_of_the_same_statement_whichever_node_is_asked(kafka_broker: KafkaBroker) -> None:
    with ExitStack() as stack:
        root, run = Path(stack.enter_context(TemporaryDirectory(prefix="sl-"))), uuid4().hex[:8]
        net = stack.enter_context(network(root))
        deployment = SqlDeployment(root, kafka_broker.bootstrap_servers, run)
        stack.enter_context(closing(deployment.log))
        scene = SqlScene(deployment)
        port = int(kafka_broker.bootstrap_servers.rpartition(":")[2])
        app = f"{deployment.module}:app"
        nodes = make_nodes(net, ["one", "two", "three"], root, port, SETTINGS, app, MATRIX_RUN=run)
        for node in nodes.values():
            stack.callback(node.close)
            node.start()
        for node in nodes.values():
            node.until_it_answers()
            client = httpx.Client(base_url=node.url, timeout=HANGING_S, trust_env=False)
            scene.clients.append(stack.enter_context(client))
        try:
            with scene.going_on():
                check_statements(scene, EXAMPLES)
        except BaseException as error:
            error.add_note("\n".join(node.printed() for node in nodes.values()))
            raise
        assert scene.cuts
        assert scene.apart <= scene.cuts // 10, "a cut is made unless a node refuses it"
