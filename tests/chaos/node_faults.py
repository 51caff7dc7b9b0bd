"""What happens to nodes that are asked: each fault ends with all of them running and reaching each other again."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import closing

from chaos.node_scene import NodeScene
from stateline.deployment.nodes_topic import nodes_partition
from stateline.deployment.workers.instance_file import ask_to_drain
from support.processes.host_nodes import Node, make_keys
from support.processes.small_disk import full

HOUR_S = 3600.0
WAITS = "run another application than this worker does"
OTHER_TOPOLOGY, OTHER_WIRE = "support.apps.other_topology_app:app", "support.apps.other_wire_app:app"


def restart_within_session(scene: NodeScene) -> None:
    """Killed, and there again at once."""
    node = any_node(scene)
    node.end()
    node.start()
    node.until_it_answers()


def restart_beyond_session(scene: NodeScene) -> None:
    """Killed, and there again when others have its tasks."""
    node = any_node(scene)
    node.end()
    until_taken_over(scene, node)
    node.start()
    node.until_it_answers()


def stop(scene: NodeScene) -> None:
    """Worker and server hang until others have the tasks, and go on as if nothing had been."""
    node = any_node(scene)
    node.pause()
    until_taken_over(scene, node)
    node.go_on()


def two_generations(scene: NodeScene) -> None:
    """The worker hangs, and its server does not; it goes on when others have its tasks, which it takes for its own."""
    node = any_node(scene)
    node.send(signal.SIGSTOP, "worker")
    until_taken_over(scene, node)
    node.send(signal.SIGCONT, "worker")


def cut_from_kafka(scene: NodeScene) -> None:
    """Connections are lost, or silent: then what was sent arrives when others have the tasks."""
    node = any_node(scene)
    scene.chance.choice((node.kafka.cut, node.kafka.fall_silent))()
    until_taken_over(scene, node)
    scene.until(lambda: not scene.owned(node))
    node.kafka.mend()


def cut_from_one(scene: NodeScene) -> None:
    """Two nodes do not hear of each other any more; the third one reaches both."""
    one, two = scene.chance.sample([*scene.nodes.values()], 2)
    one.host.cut(two.host)
    try:
        until_out_of_reach(scene, one, two)
        scene.until_asked()
    finally:
        one.host.join(two.host)
    until_reached(scene)


def cut_from_all(scene: NodeScene) -> None:
    """One node reaches neither Kafka nor another node, and clients reach it."""
    node = any_node(scene)
    others = [other for other in scene.nodes.values() if other is not node]
    node.kafka.fall_silent()
    for other in others:
        node.host.cut(other.host)
    try:
        until_taken_over(scene, node)
        scene.until(lambda: not scene.owned(node))
    finally:
        for other in others:
            node.host.join(other.host)
        node.kafka.mend()
    until_reached(scene)


def clock_jump(scene: NodeScene) -> None:
    """The wall clock of a node goes forward by an hour, then back by two, then it is right again."""
    node = any_node(scene)
    for seconds in (HOUR_S, -2 * HOUR_S, HOUR_S):
        node.host.jump(seconds)
        time.sleep(scene.chance.uniform(0.3, 0.6))


def other_topology(scene: NodeScene) -> None:
    """Somebody starts a server and a worker of another topology: it is not ready, the others are and answer, and the
    worker waits and takes no task; then they leave."""
    guest, urls = scene.guest, {node.url for node in scene.nodes.values()}
    said = guest.said(WAITS)
    guest.start(app=OTHER_TOPOLOGY)
    guest.until_it_answers()
    scene.until(lambda: guest.said(WAITS) > said)
    scene.until(lambda: "runs another topology" in scene.get(guest, "/readyz").text)
    for node in scene.nodes.values():
        scene.until(lambda node=node: scene.status(node, "/readyz") == 200)  # type: ignore[misc]
    scene.until_asked()
    assert guest.processes["worker"].poll() is None, guest.printed()
    assert not scene.get(guest, "/v1/nodes").json()["nodes"][guest.name]["tasks"], guest.printed()
    scene.until(lambda: all(set(scene.owners(node).values()) <= urls for node in scene.nodes.values()))
    scene.guest.end(signal.SIGTERM)


def other_wire(scene: NodeScene) -> None:
    """A node is started as a build whose wire the others do not understand: nobody reaches what it has."""
    node = any_node(scene)
    node.end(signal.SIGTERM)
    node.start(app=OTHER_WIRE)
    node.until_it_answers()
    for other in scene.nodes.values():
        if other is not node:
            until_out_of_reach(scene, node, other)
    scene.until(lambda: scene.owned(node) != set())
    node.end(signal.SIGTERM)
    node.start()
    node.until_it_answers()


def registry_deleted(scene: NodeScene) -> None:
    """The topic by which nodes find each other is deleted; who comes then finds all of them."""
    with closing(scene.log.admin()) as admin:
        admin.delete_topics([nodes_partition(scene.application).topic])
    scene.guest.start("serve")
    scene.guest.until_it_answers()
    scene.until(lambda: reached(scene, scene.guest) == {*scene.nodes, scene.guest.name})
    scene.guest.end(signal.SIGTERM)


def rolling_restart(scene: NodeScene) -> None:
    """One after the other is stopped in order and started again."""
    for node in scene.nodes.values():
        node.end(signal.SIGTERM)
        node.start()
        node.until_it_answers()
        scene.until(lambda node=node: scene.status(node, "/readyz") == 200)  # type: ignore[misc]


def standby_killed_while_promoted(scene: NodeScene) -> None:
    """A node is killed, and then one that follows what it had, between its last commit as a standby and its first step
    as the owner; both come back."""
    heir = any_node(scene)
    heir.end()
    heir.start("serve")
    heir.start("worker", STATELINE_CRASH_AT="standby:let-go")
    heir.until_it_answers()
    promoted, owners = heir.processes["worker"], list[Node]()

    def follows() -> bool:
        told = {name: each["tasks"] for name, each in scene.get(heir, "/v1/nodes").json()["nodes"].items()}
        followed = {task for task, held in told[heir.name].items() if held["role"] == "standby"}
        owners[:] = [
            node
            for name, node in scene.nodes.items()
            if any(task in followed and held["role"] == "active" for task, held in told.get(name, {}).items())
        ]
        return bool(owners) or promoted.poll() is not None  # it may be given something before that

    scene.askers.until(follows)
    lost = scene.chance.sample(owners, min(1, len(owners)))
    for node in lost:
        node.end()
    left = {node.url for node in scene.nodes.values() if node not in lost}
    # Who follows a task while the group settles is perhaps not the one that is given it.
    scene.askers.until(lambda: promoted.poll() is not None or {*scene.owners(heir).values()} <= left)
    for node in (heir, *lost):
        node.end()
        node.start()
        node.until_it_answers()


def drained(scene: NodeScene) -> None:
    """A node hands over its tasks, is stopped and started again."""
    node = any_node(scene)
    application = node.state_directory / scene.application
    ask_to_drain(application, "worker-0")
    scene.until(lambda: not scene.owned(node))
    until_taken_over(scene, node)
    node.end(signal.SIGTERM)
    node.start()
    node.until_it_answers()


def owners_disk_full(scene: NodeScene) -> None:
    """Nothing can be written to the disk of a node, which runs on."""
    node = any_node(scene)
    with full(node.state_directory):
        until_left(scene, node, "No space left")


def certificate_refused(scene: NodeScene) -> None:
    """A node starts again with a certificate of an authority that the others do not know, and then with its own."""
    until_any_may_leave(scene)
    node = any_node(scene)
    own, foreign = node.settings, node.keys / "foreign"
    if not foreign.exists():
        make_keys(foreign, [*scene.nodes])
    for settings in ([each.replace(f"={node.keys}/", f"={foreign}/") for each in own], own):
        node.end(signal.SIGTERM)
        node.settings = settings
        node.start()
        node.until_it_answers()
        if settings is not own:
            until_left(scene, node, "No other node links with this one")


def worker_crashes_at_each_start(scene: NodeScene) -> None:
    """The worker of a node is killed at its first commit, and started again, until others have its tasks."""
    until_any_may_leave(scene)
    node = any_node(scene)
    node.end(signal.SIGKILL, "worker")
    others = {other.url for other in scene.nodes.values() if other is not node}
    asked = next(other for other in scene.nodes.values() if other is not node)

    def has_left() -> bool:
        if "worker" not in node.processes or node.processes["worker"].poll() is not None:
            node.start("worker", STATELINE_CRASH_AT="commit:begun")
        return {*scene.owners(asked).values()} <= others

    scene.askers.until(has_left)
    node.end(signal.SIGKILL, "worker")
    until_taken_over(scene, node)
    (node.state_directory / scene.application / "instances" / "worker-0.starts").unlink()
    node.start("worker")


Fault = Callable[[NodeScene], None]
FAULTS: Mapping[Fault, int] = {
    restart_within_session: 3,
    restart_beyond_session: 3,
    stop: 3,
    two_generations: 3,
    cut_from_kafka: 3,
    cut_from_one: 3,
    cut_from_all: 3,
    clock_jump: 2,
    other_topology: 1,
    other_wire: 1,
    registry_deleted: 1,
    rolling_restart: 1,
}
"""How likely each is."""
OF_STANDBYS: Mapping[Fault, int] = {
    standby_killed_while_promoted: 3,
    drained: 2,
    owners_disk_full: 3,
    certificate_refused: 2,
    worker_crashes_at_each_start: 2,
}
"""Those that come on top where tasks have standbys."""


def any_node(scene: NodeScene) -> Node:
    """One of those that have tasks, by chance."""
    found: list[Node] = []

    def have_tasks() -> bool:
        found[:] = [node for node in scene.nodes.values() if scene.owned(node)]
        return bool(found)

    scene.until(have_tasks)
    return scene.chance.choice(found)


def until_taken_over(scene: NodeScene, node: Node) -> None:
    """Wait until the other nodes have all tasks, each of them knows it, and has answered what this one cannot have; and
    ask this one too, if it is there."""
    others = [other for other in scene.nodes.values() if other is not node]
    urls = {other.url for other in others}
    scene.until(lambda: all(set(scene.owners(other).values()) <= urls for other in others))
    scene.until_ahead(others)
    if node.is_there:
        scene.ask_at(node)
    scene.until_asked()


def until_left(scene: NodeScene, node: Node, why: str) -> None:
    """Wait until a node says this of itself, its worker has left the group, and the others have all tasks."""
    scene.until(lambda: why in scene.get(node, "/readyz").text)
    scene.until(lambda: not scene.owned(node))
    until_taken_over(scene, node)


def until_any_may_leave(scene: NodeScene) -> None:
    """Wait until no node had to leave lately that does not work again: only one at a time leaves because of others."""
    scene.until(lambda: not scene.with_faults())


def until_out_of_reach(scene: NodeScene, one: Node, two: Node) -> None:
    """Wait until neither says that it reaches the other."""
    scene.until(lambda: two.name not in reached(scene, one) and one.name not in reached(scene, two))


def until_reached(scene: NodeScene) -> None:
    """Wait until all of them reach all others."""
    scene.until(lambda: all(reached(scene, node) >= set(scene.nodes) for node in scene.nodes.values()))


def reached(scene: NodeScene, node: Node) -> set[str]:
    """The nodes that this one says it reaches, itself as well."""
    told = scene.get(node, "/v1/nodes").json()["nodes"]
    return {name for name, each in told.items() if each["reached"]}
