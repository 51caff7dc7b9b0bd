"""Fetch stores from other nodes for the workers of this one (`worker/copied_tasks`).

One task is fetched at a time, from its owner or else from a node that follows it. The other waiting workers get signs
that their turn comes. Received bytes are kept if a node or this process dies
(`stateline_store.snapshots.store_copies`). The worker gets a message after a complete copy was checked, or if nothing
arrives for `_PATIENCE_S`. In the second case it reads the changelogs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from stateline.config.settings import Config
from stateline.deployment.workers.instance_file import lock_path
from stateline.model.topology import Topology
from stateline.server.contract.hidden_paths import without_paths
from stateline.server.copies.wire import PIECE_BYTES, SILENT_S, heard, say
from stateline.server.nodes.greeting import COPY
from stateline.server.nodes.nodes import Nodes
from stateline.server.state.worker_connection import WorkerConnection
from stateline.server.state.workers import Workers
from stateline_store import DamagedDataError, InvalidArgumentError, NotPresentError, StatelineError, TopicPartition
from stateline_store.inspection.inspection import lock_holder
from stateline_store.snapshots.copied_files import ArrivingFile
from stateline_store.snapshots.store_copies import CopyDirectory, Declared, StoreCopy, remove_unwanted
from stateline_store.stores.committed_store import CommittedStore
from stateline_store.task_id import TaskId

# Between two looks at the wanted copies, and between two signs to a waiting worker.
_LOOK_S, _SIGN_S = 0.25, 1.0
_PATIENCE_S = 30.0
_AGAIN_S = 1.0
# How long unwanted bytes are kept, and between two sweeps. A killed worker returns and wants them again.
_KEPT_S, _SWEEP_S = 600.0, 60.0

_log = logging.getLogger(__name__)


class _NotSentError(Exception):
    """The other node is gone or refuses. str() has the reason. `for_good`: a retry cannot help."""

    def __init__(self, why: str, *, for_good: bool = False) -> None:
        super().__init__(why)
        self.for_good = for_good


class CopyReceiver:
    """Fetches copies. One server process of a node does this, on its event loop's thread."""

    def __init__(self, config: Config, topology: Topology, workers: Workers, nodes: Nodes) -> None:
        self._topology, self._workers, self._nodes = topology, workers, nodes
        self._application = config.state_dir / topology.application_id
        self._is_off = config.node_copy_max_bytes_per_second == 0
        self._ended: dict[str, WorkerConnection] = {}  # task → the informed worker, until it confirms
        self._received = 0
        self._sweeps_s = 0.0

    async def keep(self) -> None:
        while True:
            try:
                await self._look()
            except Exception:  # noqa: BLE001 - a defect; a waiting worker soon reads its changelogs
                _log.exception("Files of other nodes could not be fetched")
            await asyncio.sleep(_LOOK_S)

    async def _look(self) -> None:
        wanted = self._workers.wanted_copies()
        self._ended = {task: by for task, by in self._ended.items() if self._wants(by, task)}
        for task_id, (worker, stores) in wanted.items():
            if self._ended.get(task_id) is not worker:
                await self._serve(task_id, worker, stores)
        if time.monotonic() >= self._sweeps_s:
            self._sweeps_s = time.monotonic() + _SWEEP_S
            before_s = time.time() - _KEPT_S
            await asyncio.to_thread(remove_unwanted, self._application, self._is_wanted, before_s)

    def _is_wanted(self, task_id: str, instance: str) -> bool:
        """Whether files of this task may still arrive: of another node, or of a backup that this worker fetches."""
        if not instance:
            return task_id in self._workers.wanted_copies()
        known, lock = self._workers.instances.get(instance), lock_path(self._application, instance)
        return known is not None and known.has(task_id) and lock_holder(lock)[0] is not False

    def _wants(self, worker: WorkerConnection, task_id: str) -> bool:
        found = self._workers.wanted_copies().get(task_id)
        return found is not None and found[0] is worker

    async def _serve(self, task_id: str, worker: WorkerConnection, stores: Sequence[str]) -> None:
        """Fetch this task while this worker wants it. Send signs to all waiting workers meanwhile."""
        fetching = asyncio.create_task(self._fetched(task_id, stores))
        try:
            while not fetching.done() and self._wants(worker, task_id):
                self._say_it_goes_on()
                await asyncio.wait([fetching], timeout=_SIGN_S)
        finally:
            fetching.cancel()
            (why,) = await asyncio.gather(fetching, return_exceptions=True)
        if isinstance(why, BaseException):
            if not isinstance(why, asyncio.CancelledError):
                _log.error("The stores of task %s could not be fetched", task_id, exc_info=why)
            why = "fetching them failed"
        worker.say_copying(task_id, ended=True, why=why)
        self._ended[task_id] = worker

    def _say_it_goes_on(self) -> None:
        """Send a sign to all waiting workers. Without one, they read the changelogs."""
        for task_id, (worker, _) in self._workers.wanted_copies().items():
            if self._ended.get(task_id) is not worker:
                worker.say_copying(task_id)

    async def _fetched(self, task_id: str, stores: Sequence[str]) -> str:
        """Return why the copy is not complete; empty if it is."""
        if self._is_off:
            return "node.copy.max.bytes.per.second = 0"
        arriving = CopyDirectory(self._application, task_id)
        try:
            why = await self._fetched_from_any(task_id, stores, arriving)
        except StatelineError as error:
            why = str(error)
        if why:
            _log.warning("The stores of task %s cannot be had from another node: %s", task_id, why)
            with suppress(StatelineError):  # it is swept later
                await asyncio.to_thread(arriving.remove)
        return without_paths(why)

    async def _fetched_from_any(self, task_id: str, stores: Sequence[str], arriving: CopyDirectory) -> str:
        until_s, received = time.monotonic() + _PATIENCE_S, self._received
        while True:
            why, is_for_good = "no node that is linked with has it", False
            for node in self._holders(task_id, stores):
                try:
                    await self._fetch(task_id, stores, arriving, node)
                    return ""
                except _NotSentError as error:
                    is_for_good = error.for_good
                    why = f"node {node!r}: {error}"
            if received != self._received:
                until_s, received = time.monotonic() + _PATIENCE_S, self._received
            if is_for_good or time.monotonic() > until_s:
                return why
            await asyncio.sleep(_AGAIN_S)

    def _holders(self, task_id: str, stores: Sequence[str]) -> list[str]:
        """Return the nodes with a whole copy of this task and a worker in the group, the owner first. A fetched copy
        may become the owner's."""
        links = self._nodes.holders(task_id, stores[0], TaskId.parse(task_id).partition)
        whole = [link.hello.node for link in links if link.map.tasks[task_id].role != "restoring"]
        return list(filter(self._nodes.has_worker, whole))

    async def _fetch(self, task_id: str, stores: Sequence[str], arriving: CopyDirectory, node: str) -> None:
        """Fetch all files from this node. Raises `_NotSentError`, and `StatelineError` if they cannot be used here."""
        began_s = time.monotonic()
        link, writer = self._nodes.link(node), None
        if link is not None and link.hello.topology != self._nodes.own.topology:
            raise _NotSentError("it runs another topology", for_good=True)
        try:
            reader, writer, _ = await self._nodes.dial(node, COPY)
            say(writer, {"type": "copy", "task": task_id, "stores": list(stores)})
            copy = await self._announced(task_id, stores, _answered(await heard(reader), "copy"))
            await asyncio.to_thread(arriving.begin, copy)
            _log.info("Fetching %d bytes of task %s from node %r", copy.size_bytes, task_id, node)
            for name, size in copy.files.items():
                await self._fetch_file(arriving, name, size, node, reader, writer)
        except NotPresentError as error:
            raise _NotSentError(str(error)) from error
        except (asyncio.IncompleteReadError, OSError) as error:  # TimeoutError is one
            raise _NotSentError(f"it is gone ({error!r:.200})") from error
        finally:
            if writer is not None:
                writer.close()
        await asyncio.to_thread(arriving.check, copy, self._declared(task_id, stores))
        took_s = time.monotonic() - began_s
        _log.info("Fetched %d bytes of task %s from node %r in %.1f s", copy.size_bytes, task_id, node, took_s)

    async def _announced(self, task_id: str, stores: Sequence[str], told: Any) -> StoreCopy:
        copy = StoreCopy.from_json(told)
        definitions = self._topology.stores
        wanted = {store: definitions[store].timestamped for store in stores}
        copy.check_stores(task_id, wanted, TaskId.parse(task_id).partition)
        return copy

    def _declared(self, task_id: str, stores: Sequence[str]) -> dict[str, Declared]:
        found: dict[str, Declared] = {}
        topology, partition = self._topology, TaskId.parse(task_id).partition
        for name in stores:
            definition = topology.stores[name]
            changelog, built = definition.changelog(topology.application_id), definition.build()
            assert changelog is not None
            assert isinstance(built, CommittedStore)
            found[name] = Declared(built.layout, definition.types, TopicPartition(changelog, partition))
        return found

    async def _fetch_file(
        self,
        arriving: CopyDirectory,
        name: str,
        size: int,
        node: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Fetch one file. If the bytes that were here before differ from the other node's, fetch it again."""
        for is_last in (False, True):
            file = await asyncio.to_thread(ArrivingFile, arriving.path / name, size)
            with file:
                say(writer, {"file": name, "from": file.offset})
                left = _answered(await heard(reader), "bytes")
                if left != size - file.offset:
                    raise InvalidArgumentError(f"Node {node!r} sends {left!r:.50} bytes of {name}.")
                while left:
                    async with asyncio.timeout(SILENT_S):
                        piece = await reader.read(min(left, PIECE_BYTES))
                    if not piece:
                        raise asyncio.IncompleteReadError(b"", left)
                    left -= len(piece)
                    await asyncio.to_thread(file.add, piece)
                    self._received += len(piece)
                    self._nodes.traffic.copied_bytes[node, "received"] += len(piece)
                try:
                    await asyncio.to_thread(file.finish, str(_answered(await heard(reader), "digest")))
                    return
                except DamagedDataError:
                    if is_last:
                        raise


def _answered(message: dict[str, Any], member: str) -> Any:
    """Return this member. Raises `_NotSentError` if the request was refused."""
    if member in message:
        return message[member]
    why = message.get("refused", "its answer is not understood")
    raise _NotSentError(f"{why!s:.500}", for_good=bool(message.get("for_good")))
