"""The parts of a server that every process of it has: its large reads, and an application for relayed requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import BaseRoute

from stateline.config.extras import lacks
from stateline.server.contract.problems import HANDLERS
from stateline.server.guard.limits import Limits
from stateline.server.queries.requests import RequestReader
from stateline.server.queries.routes import QueryRoutes
from stateline.server.queries.scan_answers import ScanAnswers
from stateline.server.relay.large_reads import LargeReads
from stateline.server.serving import Serving
from stateline.server.snapshots.asked_nodes import AskedNodes
from stateline.server.snapshots.cluster import ClusterSnapshots
from stateline.server.snapshots.own_parts import OwnParts
from stateline.server.snapshots.routes import SnapshotRoutes
from stateline.server.snapshots.sweeper import SnapshotSweeper
from stateline.server.sql.routes import SqlRoutes
from stateline.server.wire.compression import CompressionMiddleware

if TYPE_CHECKING:
    from stateline.server.sql.statements import Statements


class ReadRoutes(NamedTuple):
    """The endpoints that read stores and snapshots."""

    queries: QueryRoutes
    snapshots: SnapshotRoutes
    sql: SqlRoutes

    def routes(self) -> list[BaseRoute]:
        return [*self.queries.routes(), *self.snapshots.routes(), *self.sql.routes()]


def read_routes(
    serving: Serving,
    requests: RequestReader,
    limits: Limits,
    sweeper: SnapshotSweeper,
    *,
    runs_sql: bool,
) -> ReadRoutes:
    """Return the endpoints that read, of one process. Unless it `runs_sql`, statements are relayed."""
    config = serving.config
    large = LargeReads(serving.siblings, limits, is_relaying=config.server_scan_processes > 0)
    scans = ScanAnswers(
        serving.routing,
        serving.cursors,
        serving.partitions,
        serving.nodes,
        large,
        limits,
        config.server_limit_default,
    )
    queries = QueryRoutes(serving.stores, serving.routing, serving.bodies, requests, scans)
    own = OwnParts(config, serving.stores, serving.workers, serving.ownership, sweeper.directory)
    cluster = ClusterSnapshots(serving.ownership, own, AskedNodes(config, serving.nodes))
    has_engine = not lacks("sql")
    statements = _statements(serving, cluster, sweeper) if runs_sql and has_engine else None
    sql_routes = SqlRoutes(
        config, serving.stores, serving.bounds, serving.bodies, serving.limits, large, statements, has_engine
    )
    snapshots = SnapshotRoutes(config, serving.stores, serving.bodies, limits, sweeper, cluster, large)
    return ReadRoutes(queries, snapshots, sql_routes)


def _statements(serving: Serving, cluster: ClusterSnapshots, sweeper: SnapshotSweeper) -> Statements:
    from stateline.server.sql.cuts import Cuts
    from stateline.server.sql.full_scans import FullScans
    from stateline.server.sql.reading import TableReading
    from stateline.server.sql.shown_commits import ShownCommits
    from stateline.server.sql.statements import Statements  # loads pyarrow
    from stateline.sql.places import Places
    from stateline.sql.pool import QueryProcesses

    config = serving.config
    reading = TableReading(serving.routing, sweeper.checkpoints, cluster.nodes)
    places = Places(config.sql_processes, config.caller_share(config.sql_processes))
    processes = QueryProcesses(places, config.sql_memory_bytes)
    return Statements(
        config,
        serving.stores,
        serving.routing,
        serving.bounds,
        FullScans(config.sql_max_rows_scanned, serving.routing, serving.partitions),
        reading,
        Cuts(cluster, config.sql_timeout_ms, config.server_snapshot_ttl_max_ms),
        processes,
        ShownCommits(serving.partitions, serving.topology.epoch_numbers(), lambda: serving.nodes is not None),
    )


def relayed_app(routes: Sequence[BaseRoute]) -> Starlette:
    """Return the application for requests that a sibling has checked, counts and limits."""
    app = Starlette(routes=routes, middleware=[Middleware(CompressionMiddleware)], exception_handlers=HANDLERS)
    app.router.redirect_slashes = False
    return app
