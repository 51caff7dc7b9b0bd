"""Why no node runs a task, and how long that lasts: what refusals and ``/readyz`` add where there are several nodes."""

from __future__ import annotations

from stateline.server.nodes.nodes import Nodes


def why_ownerless(nodes: Nodes, session_timeout_ms: int, task_id: str) -> str:
    """In whole sentences; empty while no other node has been heard of. To be asked where neither this node owns the
    task nor one that is linked with runs it."""
    if (owner := nodes.owner(task_id)) is not None and not owner.map.faults:
        left = owner.map.remaining.get(task_id, 0)
        return f"Node {owner.hello.node!r} has it, and answers when it has restored it: {left} offsets are left."
    unfit = {name: why for name, link in nodes.links() for why in link.map.faults.values()}
    if unfit:
        told = (f"Node {name!r} does not run its tasks: {why}" for name, why in unfit.items())
        return f"{' '.join(told)} Others get the tasks of a node that has left the group."
    if (claimants := nodes.claimants(task_id)) and nodes.claims is not None:
        return f"Node {claimants[0].hello.node!r} says that it has it, and Kafka's group has not said so yet."
    away, last = nodes.out_of_reach(), nodes.last_owner(task_id)
    session = f"{session_timeout_ms / 1000:g} s (session.timeout.ms)"
    if last in away:
        return (
            f"Node {last!r}, which had it last, is not reached: {away[last]}. If that node is gone, another one gets "
            f"its tasks {session} after Kafka heard of it last, restores them, and answers."
        )
    if last is not None and last not in nodes.others:
        return (
            f"Node {last!r}, which had it last, has left: another one gets its tasks at most {session} later, "
            "restores them, and answers."
        )
    if away:
        unreached = ", ".join(f"{name!r} ({why})" for name, why in away.items())
        return (
            f"No node that is reached says that it has it. Not reached: {unreached}. Tasks of a node that is gone go "
            f"to others {session} after Kafka heard of it last."
        )
    if nodes.others:
        return "All nodes are reached, and none runs it: the group is giving it to one, or its worker is being started."
    return ""
