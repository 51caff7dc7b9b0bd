"""Make a backup of this node's stores from the command line, beside its workers and servers."""

from __future__ import annotations

import asyncio

from stateline.cli.table import Row
from stateline.config.settings import Config
from stateline.dsl.app import App
from stateline.server.backups.making import BackupMaker
from stateline.server.state.workers import Workers
from stateline.server.wire.time_limits import TimeLimits
from stateline_store import StateDirectory
from stateline_store.clock import now_ms
from stateline_store.snapshots.backup import backup_id


def make_now(app: App, config: Config, *, full: bool = False) -> Row:
    """Make the backup and return what it has and lacks, and what was written. `full` writes all pieces again. Raises as
    `BackupMaker.make`."""
    return asyncio.run(_make(app, config, full))


async def _make(app: App, config: Config, full: bool) -> Row:
    topology = app.configured_topology(config)
    application = StateDirectory(config.state_dir, topology.application_id).application
    workers = Workers(application, lambda: None, TimeLimits())
    try:
        maker = BackupMaker(config, topology, workers)
        try:
            await workers.refresh()
            backup, written, lacks = await maker.make(backup_id(now_ms()), full=full)
        finally:
            maker.close()
    finally:
        await workers.close()
    return {
        "backup": backup.id,
        "node": backup.node,
        "stores": len({part.store for part in backup.copy.parts}),
        "partitions": len(backup.copy.parts),
        "files": written.all_files,
        "bytes": written.all_bytes,
        "written files": written.files,
        "written bytes": written.bytes,
        "lacks": ", ".join(f"{task}: {why}" for task, why in lacks.items()),
    }
