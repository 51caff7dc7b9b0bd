"""Three nodes on hosts of their own, under faults, while clients ask: no answer is wrong, none goes back, and one copy
at a time is the owner's.

What is held against the nodes, all the time, is in `support/oracles/cluster_oracle.py`; the faults are those of
`make chaos CLUSTER=3`, each once. Every test leaves the nodes settled.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from chaos.node_faults import (
    FAULTS,
    Fault,
    clock_jump,
    cut_from_all,
    restart_beyond_session,
    until_out_of_reach,
    until_reached,
)
from chaos.node_scene import NodeScene, node_scene
from support.kafka.kafka_broker import KafkaBroker
from support.processes import hosts
from support.processes.query_server import wait_until
from support.run.length import long_or_short
from support.run.patience import HANGING_S

MISSING = hosts.missing()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
SESSION_S = 2.0
# In less time others have a registry that was deleted (`test_registry.py`), another topology
# (`test_other_topologies.py`), another build (`test_wire_versions.py`), restarts (`test_rolling_upgrade.py`), and a
# worker that hangs (`test_former_owners.py`). Two nodes that do not reach each other are below. A node that is back at
# once, and one that is cut off from Kafka alone, are less than these.
SHOWN: list[Fault] = long_or_short([*FAULTS], [restart_beyond_session, cut_from_all, clock_jump])
CALM = long_or_short(False, True)  # whatever is asked is work for three nodes, whatever is written for a broker, too
_log = logging.getLogger(__name__)


@pytest.fixture(scope="module")
def scene(kafka_broker: KafkaBroker) -> Iterator[NodeScene]:
    with node_scene(kafka_broker, random.Random(5), SESSION_S, ["one", "two", "three"], calm=CALM) as made:
        yield made


@pytest.mark.parametrize("fault", SHOWN, ids=lambda fault: fault.__name__)
def test_answers_are_right_under_a_fault_and_all_is_well_after_it(scene: NodeScene, fault: Fault) -> None:
    began_s = time.monotonic()
    fault(scene)
    took_s = time.monotonic() - began_s
    settled_s = scene.settle()
    _log.info("%.1f s, settled after %.1f s; slowest %s", took_s, settled_s, scene.askers.slowest)


def test_who_does_not_reach_an_owner_says_where_that_is(scene: NodeScene) -> None:
    one, two, three = scene.nodes.values()
    owned = scene.owned(two)
    one.host.cut(two.host)
    try:
        until_out_of_reach(scene, one, two)
        for partition in owned:
            told = scene.get(one, "/v1/stores/counts/range", partition=partition)
            assert told.status_code in (421, 503), told.text
            assert told.json()["owner"] == two.url, told.text
        # On a busy machine the link between these two may be made anew meanwhile.
        wait_until(
            lambda: {scene.status(three, "/v1/stores/counts/range", partition=p) for p in owned} == {200}, HANGING_S
        )

        partial: dict[str, Any] = {}

        def is_refused_by_two_alone() -> bool:
            partial.update(scene.get(one, "/v1/stores/counts/range", allow_partial="true").json())
            return set(partial.get("failures", {})) == owned

        wait_until(is_refused_by_two_alone, HANGING_S)
        failures = partial["failures"]
        assert all(each["status"] in (421, 503) and each["owner"] == two.url for each in failures.values()), failures
        assert partial["partitions"].keys() == scene.owners(three).keys() - owned
        assert partial["entries"]
    finally:
        one.host.join(two.host)
    until_reached(scene)
