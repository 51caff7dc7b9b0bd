"""The life of a server process: what runs beside its answers, when it begins to answer, and what it closes."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from stateline.processes.tracing import traced
from stateline.server.backups.keeping import BackupKeeper
from stateline.server.console.history import History
from stateline.server.copies.receiving import CopyReceiver
from stateline.server.nodes.joining import joined
from stateline.server.read_routes import ReadRoutes
from stateline.server.relay.answering import RelayedRequests
from stateline.server.serving import Serving
from stateline.server.snapshots.sweeper import SnapshotSweeper
from stateline.server.telemetry.measuring import Measuring

# A starting server waits this long for links to other nodes before it answers.
_LINKED_WITHIN_S, _LOOK_AGAIN_S = 3.0, 0.02
# A server that takes over waits this long until every store can be queried.
_TAKES_OVER_WITHIN_S = 15.0


def _kept(
    serving: Serving,
    reads: ReadRoutes,
    snapshots: SnapshotSweeper,
    measuring: Measuring,
    history: History,
    backups: BackupKeeper | None,
    announces: bool,
) -> list[Coroutine[Any, Any, None]]:
    """Return what runs as long as the process answers."""
    kept = [serving.store_watch.follow(), serving.follower.follow(), snapshots.sweep(), history.keep()]
    kept.append(serving.certificates.keep(warns=announces))
    if serving.group is not None:
        kept.append(serving.group.keep())
    if reads.sql.statements is not None:
        kept.append(reads.sql.statements.keep())
    if measuring.metrics.shared:
        kept.append(measuring.metrics.keep_shared())
    if backups is not None:
        kept.append(backups.keep())
    if serving.nodes is not None and announces:
        kept.append(CopyReceiver(serving.config, serving.topology, serving.workers, serving.nodes).keep())
    return kept


@contextlib.asynccontextmanager
async def lifetime(
    serving: Serving,
    reads: ReadRoutes,
    relayed: RelayedRequests,
    snapshots: SnapshotSweeper,
    measuring: Measuring,
    history: History,
    backups: BackupKeeper | None,
    scratch: Path,
    announces: bool,
    for_nodes: socket.socket | None,
    takes_over: bool,
) -> AsyncIterator[None]:
    """Run the parts of a server process within the block, and close them at its end. It begins when nodes are linked,
    and with `takes_over` when every store can be queried."""
    kept = _kept(serving, reads, snapshots, measuring, history, backups, announces)
    tasks = [asyncio.create_task(each) for each in kept]
    with contextlib.suppress(OSError):  # a query of a store meets the same, and says so
        scratch.mkdir(mode=0o700)
    try:
        async with AsyncExitStack() as stack:
            stack.enter_context(traced(serving.config, "server"))
            if (listener := serving.siblings.listener()) is not None:
                await stack.enter_async_context(await relayed.listen(listener))
            if serving.nodes is not None:
                await stack.enter_async_context(joined(serving.nodes, serving.config, for_nodes, announces=announces))
                with contextlib.suppress(TimeoutError):  # whoever is asked first would refuse what others have
                    async with asyncio.timeout(_LINKED_WITHIN_S):
                        while not serving.nodes.is_settled:
                            await asyncio.sleep(_LOOK_AGAIN_S)
            if takes_over:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_TAKES_OVER_WITHIN_S):
                        while await serving.readiness.reasons_not_ready():
                            await asyncio.sleep(_LOOK_AGAIN_S)
            yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await serving.close()
        measuring.close()
        shutil.rmtree(scratch, ignore_errors=True)  # a leftover is a few kilobytes of RocksDB's log
