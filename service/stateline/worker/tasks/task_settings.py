"""What all tasks of a worker have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stateline.config.settings import Config
from stateline.model.fed_parts import FedPart, parts_of
from stateline.model.record_size import MAX_RECORD_BYTES, max_record_bytes
from stateline.model.topology import Topology
from stateline.processing.clock import MACHINE_CLOCK, Clock
from stateline.processing.failures import FailureHandler
from stateline_store import StateDirectory, TopicPartition, TransactionalStore
from stateline_store.format_upgrade import UpgradeMode


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """`max_timestamp_ahead_ms`: as `reading.timely`; `upgrade_mode`: None when `upgrade.from` is not set;
    `epoch_numbers`: as `Topology.epoch_numbers`; `global_stores`: what operators look up in besides, open while tasks
    run; `parts`: by source topic, as `fed_parts.parts_of`."""

    application_id: str
    directory: StateDirectory
    failures: FailureHandler
    exactly_once: bool = False
    sync: bool = False
    upgrade_mode: UpgradeMode | None = None
    max_record_bytes: int = MAX_RECORD_BYTES
    max_timestamp_ahead_ms: int = -1
    epoch_numbers: Mapping[str, tuple[TopicPartition, ...]] = field(default_factory=dict)
    global_stores: Mapping[str, TransactionalStore] = field(default_factory=dict)
    parts: Mapping[str, tuple[FedPart, ...]] = field(default_factory=dict)
    clock: Clock = MACHINE_CLOCK

    @classmethod
    def of(
        cls,
        config: Config,
        topology: Topology,
        directory: StateDirectory,
        failures: FailureHandler,
        global_stores: Mapping[str, TransactionalStore],
        clock: Clock = MACHINE_CLOCK,
    ) -> TaskSettings:
        """As the application is configured."""
        return cls(
            topology.application_id,
            directory,
            failures,
            exactly_once=config.exactly_once,
            sync=config.statestore_sync,
            upgrade_mode=config.upgrade_mode if config.upgrade_from else None,
            max_record_bytes=max_record_bytes(config.producer),
            max_timestamp_ahead_ms=config.max_timestamp_ahead_ms,
            epoch_numbers=topology.epoch_numbers(),
            global_stores=global_stores,
            parts=parts_of(topology),
            clock=clock,
        )
