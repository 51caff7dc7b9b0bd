"""Which node is asked for a partition that this one has not, and whom next when that refuses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stateline.deployment.stores.topology_file import Placement
from stateline.query.values import CopyStatus, Failure, Outcome, PartitionAnswer, QueryRows, ServedBy, Terms
from stateline.query.wire import WireRequest
from stateline.server.guard.proofs import Proof
from stateline.server.nodes.node_map import HeldTask, NodeMap
from stateline.server.routing.bounds import PositionBounds
from stateline.server.routing.cluster_copies import ClusterCopies
from stateline.server.routing.copies import Copies
from stateline.server.state.ownership import Ownership
from stateline.server.state.partitions import Partitions
from stateline.server.state.served_stores import ServedStore
from stateline.server.state.workers import Workers
from stateline.server.wire.time_limits import TimeLimits
from stateline_store import (
    IsolationLevel,
    NotActiveError,
    NotPresentError,
    Position,
    PositionQuery,
    StateDirectory,
)
from support.apps import changes_app
from support.processes.linked_nodes import HasNothing, LinkedNode, run, until, with_secret

TASK = "0_0"
REFUSES = Failure(NotActiveError("It moved away."))


class Says(HasNothing):
    """Answers of a node that says this, whatever it is asked."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self._outcome = outcome

    async def answer(self, request: WireRequest, shown: Proof | None) -> Outcome:
        self.asked.append(request)
        return self._outcome


def standby() -> PartitionAnswer:
    return PartitionAnswer(QueryRows(), Position(), CopyStatus("standby", 0, 0, 0, lag_ms=5, lag_records=1))


async def asked(root: Path, others: Mapping[str, tuple[NodeMap, Outcome]]) -> tuple[Outcome, list[str]]:
    """What a node without copies answers for a partition that these have, and which of them it has asked."""
    here = LinkedNode("here", with_secret(root))
    nodes = {name: LinkedNode(name, with_secret(root)) for name in others}
    for name, (told, outcome) in others.items():
        nodes[name].map = told
        nodes[name].answer_by(Says(outcome))
        here.hear_of(name, nodes[name].entry)
    await until(lambda: len([link for _, link in here.nodes.links() if link.map.tasks]) == len(others))
    topology, limits = changes_app.build("t").topology(), TimeLimits()
    workers = Workers(root / "application", lambda: None, limits)
    ownership = Ownership(topology, workers, None, exactly_once=True)
    directory = StateDirectory(root / "state", topology.application_id)
    partitions, bounds = Partitions(directory, root / "scratch", ownership), PositionBounds(topology)
    copies = Copies(partitions, workers, ownership, bounds, "")
    cluster = ClusterCopies(copies, ownership, here.nodes, lambda _: "", limits)
    store = ServedStore(topology.stores["counts"], Placement(0, 1, None))
    terms = Terms("counts", IsolationLevel.READ_COMMITTED, max_staleness_ms=60_000)
    found = (await cluster.ask(store, terms, {0: PositionQuery()}, None))[0]
    for node in [here, *nodes.values()]:
        await node.close()
    return found, [name for name, node in nodes.items() for _ in node.answers.asked]


def of_copy(role: ServedBy, offset: int = -1, generation: int = -1) -> NodeMap:
    return NodeMap(1, {TASK: HeldTask(role, generation)}, {"counts": {"0": offset}})


def test_when_the_owner_refuses_that_the_map_has_another_one_is_asked(tmp_path: Path) -> None:
    async def scene() -> None:
        others: dict[str, tuple[NodeMap, Outcome]] = {
            "owner": (of_copy("active", generation=3), REFUSES),
            "other": (of_copy("standby", 7), standby()),
        }
        found, who = await asked(tmp_path, others)
        assert isinstance(found, PartitionAnswer)
        assert (found.node, found.copy.served_by) == ("other", "standby")
        assert sorted(who) == ["other", "owner"], "each once"

    run(scene())


def test_of_copies_the_one_that_is_furthest_is_asked_and_no_more_than_is_needed(tmp_path: Path) -> None:
    async def scene() -> None:
        offsets = {"behind": 3, "furthest": 9, "between": 7}
        found, who = await asked(tmp_path, {n: (of_copy("standby", at), standby()) for n, at in offsets.items()})
        assert isinstance(found, PartitionAnswer)
        assert (found.node, who) == ("furthest", ["furthest"])

    run(scene())


def test_when_all_refuse_it_is_said_what_tells_most_and_three_are_asked_at_most(tmp_path: Path) -> None:
    async def scene() -> None:
        absent = Failure(NotPresentError("It is not here."))
        others: dict[str, tuple[NodeMap, Outcome]] = {f"n{at}": (of_copy("standby", at), absent) for at in range(4)}
        others["n3"] = others["n3"][0], REFUSES
        found, who = await asked(tmp_path, others)
        assert isinstance(found, Failure)
        assert isinstance(found.error, NotActiveError)
        assert sorted(who) == ["n1", "n2", "n3"]

    run(scene())
