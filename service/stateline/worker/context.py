"""`WorkerContext`: what the parts of one worker share."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from stateline.config.settings import Config
from stateline.deployment.lease import Lease
from stateline.log.interface import Admin, Log
from stateline.model.topology import Topology
from stateline.processing.clock import Clock
from stateline.processing.failures import FailureHandler
from stateline.worker.files.deployment_files import DeploymentFiles
from stateline.worker.files.figures import Figures
from stateline_store import StateDirectory


class QueryDoor(Protocol):
    """The query socket (`queries.query_socket`), for parts that work while servers wait for answers."""

    @property
    def has_clients(self) -> bool: ...

    def let_in(self, wait_s: float = 0.0, *, stay: bool = False, most_s: float | None = None) -> int: ...

    def mid_commit(self) -> AbstractContextManager[None]: ...

    def announce_commit(self) -> None: ...

    def announce_status(self) -> None: ...


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """One worker's, for its thread. Functions and records go by `clock`. After `lease`, others may have its tasks."""

    config: Config
    topology: Topology
    log: Log
    admin: Admin
    directory: StateDirectory
    files: DeploymentFiles
    lease: Lease
    queries: QueryDoor
    clock: Clock
    failures: FailureHandler
    figures: Figures

    @property
    def group(self) -> str:
        return self.topology.application_id
