"""The scan process: it answers what makes many rows, so that no small read waits behind a large one.

The server processes relay such requests to it (`siblings`). It opens its own secondaries and checkpoints when they are
first asked, and closes them when nobody asks for a minute. It runs at a lower priority, so scans yield when the
processor is short. It listens at no port. The supervisor starts it again if it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import uvicorn

from stateline.config.settings import Config
from stateline.config.temporary import use_temporary_directory
from stateline.deployment.stores.discarding import settle_if_known
from stateline.dsl.app import App
from stateline.processes.child import HAND_OVER, ReadySignal
from stateline.processes.machine import allow_many
from stateline.processes.tracing import traced
from stateline.server.contract.hidden_paths import hide_directory
from stateline.server.drain import GRACE_S
from stateline.server.guard.limits import Limits
from stateline.server.nodes.joining import joined
from stateline.server.queries.requests import RequestReader
from stateline.server.read_routes import read_routes, relayed_app
from stateline.server.relay.answering import RelayedRequests
from stateline.server.serving import Serving
from stateline.server.snapshots.sweeper import SnapshotSweeper
from stateline.server.wire.turns import ScanPace
from stateline_store import NotReadyError

_NICE = 10  # of nice(2): a small read gets nine times the processor that a scan gets beside it
_LOOK_AGAIN_S = 0.1
_KNOWN_WITHIN_S = 3.0
# Large batches take a third less time for a row. A stream has a few MiB of rows in memory then.
_LONGER_STEPS = 3


def run_scan_process(app: App, config: Config) -> None:
    """Answer large reads for the servers of this state directory, until SIGTERM, SIGINT or HAND_OVER.

    Raises `ConfigurationError`, `TopologyError` and `RetryLaterError` as `create_app`, and `NotReadyError` if it cannot
    listen.
    """
    readiness = ReadySignal()
    allow_many()
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    settle_if_known(config, app.target)
    ScanPace.times = _LONGER_STEPS
    # The process that relays a request has counted it.
    config = config.model_copy(update={"server_scans_max": -1, "server_rate_limit": -1})
    factory = uvicorn.Config(app=relayed_app([])).get_loop_factory()
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_answer(app, config, readiness))


async def _answer(app: App, config: Config, readiness: ReadySignal) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, HAND_OVER):
        loop.add_signal_handler(number, stopped.set)
    async with _relayed(app, config) as (relayed, listening):
        readiness.say()
        await stopped.wait()
        listening.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                while relayed.running:
                    await asyncio.sleep(_LOOK_AGAIN_S)


@contextlib.asynccontextmanager
async def _relayed(app: App, config: Config) -> AsyncIterator[tuple[RelayedRequests, asyncio.Server]]:
    use_temporary_directory(config)
    scratch = Path(tempfile.gettempdir()) / f"stateline-scans-{secrets.token_hex(8)}"
    hide_directory(config.state_dir, "<state.dir>")
    hide_directory(scratch, "<scratch>")
    scratch.mkdir(mode=0o700)
    serving = Serving(app.topology(), config, scratch, scans_only=True)
    application = config.state_dir / app.application_id
    sweeper = SnapshotSweeper(application, config.server_snapshots_max_bytes)
    routes = read_routes(serving, RequestReader(config, serving.bounds), Limits(config), sweeper, runs_sql=True)
    relayed = RelayedRequests(relayed_app(routes.routes()), application, serving.nodes)
    running = [serving.store_watch.follow(), sweeper.close_deleted()]
    if routes.sql.statements is not None:
        running.append(routes.sql.statements.keep())
    if serving.group is not None:
        running.append(serving.group.keep())
    tasks = [asyncio.create_task(each) for each in running]
    try:
        async with AsyncExitStack() as stack:
            stack.enter_context(traced(config, "scans"))
            if serving.nodes is not None:
                await stack.enter_async_context(joined(serving.nodes, config, None, announces=False))
            await serving.workers.until_known(_KNOWN_WITHIN_S)  # or it would refuse what they own
            listener = serving.siblings.listener()
            if listener is None:
                raise NotReadyError(f"{application} has no room for the socket of the scan process.")
            yield relayed, await stack.enter_async_context(await relayed.listen(listener))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await serving.close()
        shutil.rmtree(scratch, ignore_errors=True)
