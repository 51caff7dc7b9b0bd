"""`Serving`: the parts of one server process, made and ended together.

`stores` has the stores that there are. `routing` answers queries. `store_watch` knows which stores cannot be queried.
"""

from __future__ import annotations

import logging
import secrets
from pathlib import Path

from stateline.config.embedded import embedded_path
from stateline.config.settings import Config
from stateline.log.interface import GroupMember
from stateline.model.topology import Topology
from stateline.server.certificates import Certificates
from stateline.server.cluster_view import ClusterPipelines, ClusterView
from stateline.server.guard.tokens import Tokens
from stateline.server.nodes.claims import Claims
from stateline.server.nodes.joining import hello_of, node_url
from stateline.server.nodes.keys import node_keys, why_alone
from stateline.server.nodes.map_bounds import MapBounds
from stateline.server.nodes.nodes import Nodes
from stateline.server.nodes.own_map import OwnMap
from stateline.server.nodes.ownerless import why_ownerless
from stateline.server.readiness import ServerReadiness
from stateline.server.relay.siblings import Siblings
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
from stateline.server.state.pipeline_states import PipelineStates, ReportedPipelines
from stateline.server.state.served_stores import ServedStores
from stateline.server.state.store_watch import StoreWatch
from stateline.server.state.workers import Workers
from stateline.server.wire.bodies import Bodies
from stateline.server.wire.time_limits import TimeLimits
from stateline_store import RetryLaterError, StateDirectory, TopicPartition
from stateline_store.files.process_metadata import known_process_id

_log = logging.getLogger(__name__)


class Serving:
    """One per server process, made inside its event loop. Every method is for that thread."""

    def __init__(self, topology: Topology, config: Config, scratch: Path, *, scans_only: bool = False) -> None:
        """With `scans_only`, this process answers large reads alone, and opens stores when they are asked.

        Raises `ConfigurationError` when the tokens file cannot be read.
        """
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
            scans_much=scans_only,
            by_clock=config.retention_clock == "wall",
        )
        self.follower = Follower(self.partitions, config.server_follow_ms)
        self.bounds = PositionBounds(topology)
        copies = Copies(self.partitions, self.workers, self.ownership, self.bounds, node_url(config))
        pipelines, self._reported = PipelineStates(topology, config.state_dir), ReportedPipelines(topology, config)
        self.own_map = OwnMap(self.stores, self.ownership, self.partitions, self.workers, pipelines)
        self.cursors = Cursors(
            _signing_key(application),
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
        self.pipelines = ClusterPipelines(pipelines, self._reported, self.nodes, config.node)
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
            lambda task_id: self.nodes is not None and self.nodes.has_copies(task_id),
            self._why_ownerless,
            lambda: "" if self.nodes is None else self.nodes.unreached,
            opens_when_asked=scans_only,
        )
        patience_s = config.server_query_timeout_ms / 1000
        self.siblings = Siblings(application, self.cursors.process, scans=scans_only, patience_s=patience_s)
        self.readiness = ServerReadiness(
            self.store_watch, self.stores, self.workers, self.nodes, self.commits, self.limits
        )

    def look(self) -> ClusterView:
        """Return what all nodes have, as this one knows it now."""
        return ClusterView(self.config, self.nodes, self.own_map, self.ownership)

    def _on_commit(self) -> None:
        self.commits.announce()
        self.follower.wake()

    def _nodes(self) -> Nodes | None:
        """Return None on an embedded log, which one machine owns."""
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
        """Return None if no task can be outside of this directory."""
        config = self.config
        if embedded_path(config.bootstrap_servers, config.state_dir) is not None:
            return None

        def is_own_id(client_id: str) -> bool:
            process_id = known_process_id(application)
            return process_id is not None and f"-{process_id}-" in client_id

        def has_neighbours() -> bool:
            return self.nodes is not None and self.nodes.has_neighbours

        def is_own(member: GroupMember) -> bool:
            return member.member_id in self.workers.member_ids or is_own_id(member.client_id)

        group = self.topology.application_id
        wanted, announce = self.wanted_of_group, self.commits.announce
        return GroupWatch(config, group, is_own, is_own_id, wanted, announce, has_neighbours)

    def wanted_of_group(self) -> GroupRequest:
        """Return what to ask Kafka: the sources of tasks without an active copy here, and the changelogs of those and
        of tasks with copies on other nodes. It is urgent unless reached nodes run all of those tasks, within their
        leases."""
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

    def _why_ownerless(self, task_id: str) -> str:
        return "" if self.nodes is None else why_ownerless(self.nodes, self.config.session_timeout_ms, task_id)

    async def close(self) -> None:
        self.readiness.stop()
        self.siblings.close()
        self._reported.close()
        self.cursors.close()
        await self.workers.close()
        self.partitions.close()


def _signing_key(application: Path) -> bytes:
    """Return the application's key for cursors, or one of this process alone if nothing can be written."""
    try:
        return signing_key(application)
    except RetryLaterError as error:
        _log.info("Cursors of this process are its own: %s", error)
        return secrets.token_bytes(32)
