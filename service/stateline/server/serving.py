"""`Serving`: the parts of one server process, made and ended together.

Which stores there are is `stores`' to say, how a query is answered `routing`'s, and whether all can be `keeper`'s.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable
from pathlib import Path

from stateline.config.settings import Config
from stateline.model.topology import Topology
from stateline.server.routing.bounds import PositionBounds
from stateline.server.routing.copies import Copies
from stateline.server.routing.query_routing import QueryRouting
from stateline.server.state.commit_signal import CommitSignal
from stateline.server.state.cursors import Cursors, held_on_disk, signing_key
from stateline.server.state.epochs import WholeEpochs
from stateline.server.state.keeper import Keeper
from stateline.server.state.partitions import Partitions
from stateline.server.state.served_stores import ServedStores
from stateline.server.state.siblings import Siblings
from stateline.server.state.workers import Workers
from stateline.server.wire.bodies import Bodies
from stateline.server.wire.time_limits import TimeLimits
from stateline_store import RetryLaterError, StateDirectory

_log = logging.getLogger(__name__)


class Serving:
    """One per server process, made inside its event loop; every method is for that thread."""

    def __init__(self, topology: Topology, config: Config, scratch: Path) -> None:
        self.topology = topology
        self.config = config
        directory = StateDirectory(config.state_dir, topology.application_id)
        application = directory.application
        self.commits = CommitSignal()
        self.limits = TimeLimits()
        self.bodies = Bodies(self.limits, config)
        self.stores = ServedStores(topology, application)
        self.workers = Workers(application, self.commits.announce, self.limits)
        self.partitions = Partitions(
            directory,
            scratch,
            self.workers.has_live_owner,
            upgrading=config.upgrade_from is not None,
            epochs=topology.epoch_numbers(),
        )
        self.bounds = PositionBounds(topology)
        copies = Copies(self.partitions, self.workers, self.bounds)
        whole = WholeEpochs(topology, self.workers.owner, self.commits)
        self.routing = QueryRouting(copies, self.bounds, whole, self.commits)
        self.cursors = Cursors(
            _signing_key(application),
            ttl_s=config.server_cursor_ttl_ms / 1000,
            most=config.server_cursors_max,
            most_bytes=config.server_cursors_max_bytes,
            on_disk=lambda: held_on_disk(application),
            catch_up=self.partitions.catch_up,
        )
        level = config.default_state_isolation_level
        self.keeper = Keeper(self.stores, self.partitions, self.workers, self.cursors, level)
        self.siblings = Siblings(application, self.cursors.process, tls=config.server_tls_key_file is not None)
        self._leaving = False

    async def reasons_not_ready(self, names: Iterable[str] | None = None) -> list[str]:
        """Why nobody is to be sent here; else as `Keeper.reasons_not_ready`."""
        if self._leaving or self.stopping:
            return ["The server is shutting down."]
        return await self.keeper.reasons_not_ready(names)

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

    def stop(self) -> None:
        """Refuse queries from now on and end those that wait, here or at a worker, with `NotReadyError`."""
        self.commits.close()
        self.limits.stop()

    async def close(self) -> None:
        """Release every connection and every secondary."""
        self.stop()
        self.siblings.close()
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
