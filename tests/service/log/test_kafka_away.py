"""What becomes of a client that has asked Kafka while it could not be reached, when it can be again."""

from __future__ import annotations

import subprocess
import sys

from support import TESTS
from support.kafka.shared_broker import SharedBroker
from support.run.patience import HANGING_S

# In a process of its own: librdkafka would end that of the tests.
_ASKS = """
import sys
from stateline.log import kafka_admin
from stateline.log.kafka import KafkaLog
from stateline_store import LogUnavailableError
from support.kafka.commit_proxy import CommitProxy

kafka_admin.CALL_TIMEOUT_S = 0.3
proxy = CommitProxy(int(sys.argv[1].rpartition(":")[2]))
proxy.cut()
admin = KafkaLog(f"127.0.0.1:{proxy.port}").admin()

def ask():
    try:
        print("members:", admin.members("nobody"))
        return True
    except LogUnavailableError as error:
        print(error)

ask(), ask()
proxy.mend()
kafka_admin.CALL_TIMEOUT_S = 30.0
while not ask():  # a broker that has just started looks for the coordinator itself
    pass
"""


def test_who_asked_for_a_group_while_kafka_was_away_is_answered_when_it_is_back(kafka_broker: SharedBroker) -> None:
    asked = subprocess.run(
        [sys.executable, "-c", _ASKS, kafka_broker.bootstrap_servers],
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=HANGING_S,
        check=False,
    )
    assert asked.returncode == 0, asked.stderr[-2000:]
    *refused, answered = asked.stdout.splitlines()
    assert len(refused) >= 2
    assert not any(line.startswith("members: ") for line in refused)
    assert answered == "members: []"
