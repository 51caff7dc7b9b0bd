"""`ServerReadiness`: whether clients may be sent to this server process, and how it stops."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stateline.server.contract.hidden_paths import without_paths
from stateline.server.nodes.nodes import Nodes
from stateline.server.state.commit_signal import CommitSignal
from stateline.server.state.served_stores import ServedStores
from stateline.server.state.store_watch import StoreWatch
from stateline.server.state.workers import Workers
from stateline.server.wire.time_limits import TimeLimits


@dataclass(eq=False, repr=False)
class ServerReadiness:
    """One per server process, for the event loop's thread."""

    _watch: StoreWatch
    _stores: ServedStores
    _workers: Workers
    _nodes: Nodes | None
    _commits: CommitSignal
    _limits: TimeLimits
    _is_leaving: bool = False

    async def reasons_not_ready(self, names: Iterable[str] | None = None) -> list[str]:
        """Return why no client is to be sent here, as sentences. `names` are the stores to look at, None all."""
        if self._is_leaving or self._commits.closed:
            return ["The server is shutting down."]
        reasons, nodes = await self._watch.reasons_not_ready(names), self._nodes
        reasons[:0] = self._unfit_workers(is_ready=not reasons)
        if nodes is None:
            return reasons
        if nodes.rivals:
            reasons.insert(0, nodes.fault)
        elif not reasons:  # all is here or reached: what other nodes lack is theirs
            return []
        unreached = [f"Node {name!r} is not reached: {why}." for name, why in nodes.out_of_reach().items()]
        return [*reasons, *nodes.other_topologies(), *unreached]

    def _unfit_workers(self, *, is_ready: bool) -> list[str]:
        """Say which workers of this node do not run their tasks. A node that is alone and ready answers what an ended
        worker has committed, so it says nothing of that worker."""
        is_enough = is_ready and (self._nodes is None or not self._nodes.others)
        faults = self._workers.faults()
        if not is_ready:
            faults = self._workers.failed_starts() | faults
        found = [
            f"Worker {name!r} of this node does not run its tasks: {without_paths(why)}"
            for name, why in faults.items()
            if self._workers.is_connected(name) or not is_enough
        ]
        return [without_paths(self._stores.stopped), *found] if self._stores.stopped and not is_ready else found

    @property
    def waiting(self) -> int:
        """Requests that wait now: for a commit, for a worker, for the rest of their body."""
        return self._commits.waiting + self._limits.waiting

    def leave(self) -> None:
        """Answer queries as before, but be ready no more."""
        self._is_leaving = True

    def hand_over(self) -> None:
        """`leave`, because another process of this node answers from now on."""
        self.leave()
        if self._nodes is not None:
            self._nodes.is_handed_over = True

    def stop(self) -> None:
        """Refuse queries from now on, and end those that wait with `NotReadyError`."""
        self._commits.close()
        self._limits.stop()
