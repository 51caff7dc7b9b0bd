"""`Serving`: the parts of one server process, made and ended together.

`stores` has the stores that there are. `routing` answers queries. `store_watch` knows which stores cannot be queried.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path

from stateline.config.embedded import embedded_path
from stateline.config.settings import Config
from stateline.log.interface import GroupMember
from stateline.model.topology import Topology
from stateline.server.certificates import Certificates
from stateline.server.cluster_view import ClusterView
from stateline.server.contract.hidden_paths import without_paths
from stateline.server.guard.passing_on import of_node
from stateline.server.guard.tokens import Tokens
from stateline.server.nodes.claims import Claims
from stateline.server.nodes.joining import hello_of, node_url
from stateline.server.nodes.keys import node_keys, why_alone
from stateline.server.nodes.map_bounds import MapBounds
from stateline.server.nodes.nodes import Nodes
from stateline.server.nodes.own_map import OwnMap
from stateline.server.nodes.ownerless import why_ownerless
from stateline.server.routing.bounds import PositionBounds
from stateline.server.routing.cluster_copies import ClusterCopies
from stateline.server.routing.copies import Copies, CopyRouter
from stateline.server.routing.for_nodes import AnswersForNodes
from stateline.server.routing.query_routing import QueryRouting
from stateline.server.state.commit_signal import CommitSignal
from stateline.server.state.cursor_text import node_mark, signing_key
from stateline.server.state.cursors import Cursors, held_on_disk
from stateline.server.state.epochs import WholeEpochs
from stateline.server.state.follower import Follower
from stateline.server.state.group_watch import GroupRequest, GroupWatch
from stateline.server.state.ownership import Ownership
from stateline.server.state.partitions import Partitions
from stateline.server.state.pipeline_states import PipelineStates, PipelineStatus, ReportedPipelines, of_all_nodes
from stateline.server.state.served_stores import ServedStores
from stateline.server.state.siblings import Siblings
from stateline.server.state.store_watch import StoreWatch
from stateline.server.state.workers import Workers
from stateline.server.wire.bodies import Bodies
from stateline.server.wire.time_limits import TimeLimits
from stateline_store import RetryLaterError, StateDirectory, TopicPartition
from stateline_store.files.process_metadata import known_process_id

_log = logging.getLogger(__name__)


class Serving:
    """One per server process, made inside its event loop; every method is for that thread."""

    def __init__(self, topology: Topology, config: Config, scratch: Path) -> None:
        """Raises `ConfigurationError` when the tokens file cannot be read."""
        self.topology = topology
        self.config = config
        self.tokens = None if config.server_tokens_file is None else Tokens(config.server_tokens_file)
        """None where everybody may ask everything."""
        directory = StateDirectory(config.state_dir, topology.application_id)
        application = directory.application
        self.commits = CommitSignal()
        self.limits = TimeLimits()
        self.bodies = Bodies(self.limits, config)
        self.stores = ServedStores(topology, application)
        self.workers = Workers(application, self._on_commit, self.limits)
        self.group = self._group_watch(application)
        self._keys = None if self.group is None else node_keys(config)
        self.certificates = Certificates(config, self._keys)
        exactly_once = config.processing_guarantee == "exactly_once_v2"
        place = "here" if self.group is None else f"at node {config.node!r}"
        self.ownership = Ownership(topology, self.workers, self.group, exactly_once=exactly_once, place=place)
        self.partitions = Partitions(
            directory,
            scratch,
            self.ownership,
            upgrading=config.upgrade_from is not None,
            epochs=topology.epoch_numbers(),
        )
        self.follower = Follower(self.partitions, config.server_follow_ms)
        self.bounds = PositionBounds(topology)
        copies = Copies(self.partitions, self.workers, self.ownership, self.bounds, node_url(config))
        self.pipelines = PipelineStates(topology, config.state_dir)
        self._reported = ReportedPipelines(topology, config)
        self.own_map = OwnMap(self.stores, self.ownership, self.partitions, self.workers, self.pipelines)
        self.cursors = Cursors(
            key := _signing_key(application),
            ttl_s=config.server_cursor_ttl_ms / 1000,
            most=config.server_cursors_max,
            most_bytes=config.server_cursors_max_bytes,
            node=node_mark(config.node),
            on_disk=lambda: held_on_disk(application),
            catch_up=self.partitions.catch_up,
        )
        wait_max_ms, scans = config.server_wait_max_ms, self.cursors.of_nodes
        self.for_nodes = AnswersForNodes(
            self.stores, copies, self.bounds, self.commits, wait_max_ms, self.tokens, scans, config.node
        )
        self.nodes = self._nodes()
        self.cluster = None
        if self.nodes is not None:
            self.cluster = ClusterCopies(copies, self.ownership, self.nodes, self._why_ownerless, self.limits)
        self.copies: CopyRouter = self.cluster or copies
        whole = WholeEpochs(topology, self.commits, lambda store: self.copies.announce_commits(store, store.partitions))
        self.routing = QueryRouting(self.copies, self.bounds, whole, self.commits)
        level = config.default_state_isolation_level
        self.store_watch = StoreWatch(
            self.stores,
            self.partitions,
            self.workers,
            self.ownership,
            self.cursors,
            level,
            self._runs_elsewhere,
            self._is_held_elsewhere,
            self._why_ownerless,
            lambda: "" if self.nodes is None else self.nodes.unreached,
        )
        self.of_node = of_node(key)
        """What proofs of tokens between the processes of this node are made for."""
        tls = config.server_tls_key_file is not None
        self.siblings = Siblings(application, self.cursors.process, self.of_node, tls=tls)
        self._leaving = False

    def look(self) -> ClusterView:
        """What all nodes have, as this one knows it now."""
        return ClusterView(self.config, self.nodes, self.own_map, self.ownership)

    def _on_commit(self) -> None:
        """A worker here has committed, or has other tasks."""
        self.commits.announce()
        self.follower.wake()

    def _nodes(self) -> Nodes | None:
        """None on an embedded log, which is one machine's."""
        if self.group is None:
            return None
        own = hello_of(self.config, self.topology)
        alone = why_alone(self.config)
        keys, on_change = self._keys, self.commits.announce
        bounded = MapBounds(self.stores, self.topology.pipelines).bounded
        nodes = Nodes(own, keys, alone, self.own_map.now, self.for_nodes, on_change, bounded=bounded)
        nodes.claims = Claims(self.group, self.ownership.sources, nodes.directories)
        self.group.on_assigned = nodes.note_assigned
        return nodes

    def _group_watch(self, application: Path) -> GroupWatch | None:
        """None where nobody outside of this directory can have a task."""
        config = self.config
        if embedded_path(config.bootstrap_servers, config.state_dir) is not None:
            return None

        def is_own_id(client_id: str) -> bool:
            process_id = known_process_id(application)
            return process_id is not None and f"-{process_id}-" in client_id

        def is_own(member: GroupMember) -> bool:
            return member.member_id in self.workers.member_ids or is_own_id(member.client_id)

        group = self.topology.application_id
        wanted, announce = self.wanted_of_group, self.commits.announce
        return GroupWatch(config, group, is_own, is_own_id, wanted, announce, self._has_neighbours)

    def _has_neighbours(self) -> bool:
        return self.nodes is not None and self.nodes.has_neighbours

    def wanted_of_group(self) -> GroupRequest:
        """What Kafka is asked: of the copies that no worker here keeps up to date; the changelogs also of those that
        other nodes have. It is urgent while no node that is reached says that it has such a task, within its lease."""
        changelogs: set[TopicPartition] = set()
        unowned: set[str] = set()
        for store, partition in ((s, p) for s in self.stores for p in s.partitions):
            task_id = store.placement.task_id(partition)
            if not store.definition.persistent and not self.workers.follows(task_id):
                continue  # there is no copy here but its owner's
            is_active = self.ownership.is_active(task_id)
            if not is_active:
                unowned.add(task_id)
            changelog = self.ownership.changelog(store.definition, partition)
            if changelog and (not is_active or (self.nodes is not None and self.nodes.has_copies(task_id))):
                changelogs.add(changelog)
        sources = {source for task_id in unowned for source in self.ownership.sources(task_id)}
        return GroupRequest(changelogs, sources, not all(map(self._runs_elsewhere, unowned)))

    def _runs_elsewhere(self, task_id: str) -> bool:
        return self.nodes is not None and self.nodes.runs(task_id)

    def _is_held_elsewhere(self, task_id: str) -> bool:
        return self.nodes is not None and self.nodes.has_copies(task_id)

    async def reasons_not_ready(self, names: Iterable[str] | None = None) -> list[str]:
        """Why nobody is to be sent here; else as `StoreWatch.reasons_not_ready`."""
        if self._leaving or self.stopping:
            return ["The server is shutting down."]
        reasons, nodes = await self.store_watch.reasons_not_ready(names), self.nodes
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
        is_enough = is_ready and (self.nodes is None or not self.nodes.others)
        faults = self.workers.faults()
        if not is_ready:
            faults = self.workers.failed_starts() | faults
        found = [
            f"Worker {name!r} of this node does not run its tasks: {without_paths(why)}"
            for name, why in faults.items()
            if self.workers.is_connected(name) or not is_enough
        ]
        return [without_paths(self.stores.stopped), *found] if self.stores.stopped and not is_ready else found

    def pipeline_states(self) -> dict[str, PipelineStatus | None]:
        """Each pipeline's status, from this node or from the one that runs it; None when none of them tells of it."""
        own, nodes = self.pipelines.read(), self.nodes
        if nodes is None:
            return dict(own)
        told = self.pipelines_reported()
        linked = ((name, link.map.pipelines) for name, link in nodes.links())
        return of_all_nodes(own, (*linked, *told), self.config.node if told else nodes.shown)

    def pipelines_reported(self) -> list[tuple[str, Mapping[str, PipelineStatus]]]:
        """Those of drivers that no node is beside, with the names that these give their nodes."""
        if self.nodes is None:
            return []
        return self._reported.told({link.hello.directory for _, link in self.nodes.links()})

    def pipelines_elsewhere(self) -> set[str]:
        """Those that another node tells of."""
        return set() if self.nodes is None else {name for _, link in self.nodes.links() for name in link.map.pipelines}

    def _why_ownerless(self, task_id: str) -> str:
        return "" if self.nodes is None else why_ownerless(self.nodes, self.config.session_timeout_ms, task_id)

    @property
    def waiting(self) -> int:
        """Requests that wait at the moment: for a commit, for a worker, for the rest of their body."""
        return self.commits.waiting + self.limits.waiting

    @property
    def stopping(self) -> bool:
        """Whether queries are refused, because the server shuts down."""
        return self.commits.closed

    def leave(self) -> None:
        """Answer queries as before, but be ready no more: nobody is to be sent here from now on."""
        self._leaving = True

    def hand_over(self) -> None:
        """`leave`, and another process of this node goes on."""
        self.leave()
        if self.nodes is not None:
            self.nodes.is_handed_over = True

    def stop(self) -> None:
        """Refuse queries from now on and end those that wait, here or at a worker, with `NotReadyError`."""
        self.commits.close()
        self.limits.stop()

    async def close(self) -> None:
        """Release every connection and every secondary."""
        self.stop()
        self.siblings.close()
        self._reported.close()
        self.cursors.close()
        await self.workers.close()
        self.partitions.close()


def _signing_key(application: Path) -> bytes:
    """The application's key for cursors, or one of this process alone where nothing can be written."""
    try:
        return signing_key(application)
    except RetryLaterError as error:
        _log.info("Cursors of this process are its own: %s", error)
        return secrets.token_bytes(32)
