"""`CopySender`: sends the files of a task's stores to a node that dialed for them.

A worker links the files of one commit into a snapshot that is never finished (`worker/snapshots`), which takes it
milliseconds. They are read from there, as fast as ``node.copy.max.bytes.per.second`` allows. The snapshot goes when the
connection ends. If this process dies, the next sweep deletes it. It counts in ``server.snapshots.max``, and its bytes
in ``server.snapshots.max.bytes``.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from stateline.config.settings import Config
from stateline.model.topology import Topology
from stateline.processes.seldom import seldom
from stateline.server.contract.hidden_paths import without_paths
from stateline.server.copies.wire import PIECE_BYTES, SILENT_S, heard, say
from stateline.server.guard.proofs import ProvenConnection
from stateline.server.nodes.greeting import Hello
from stateline.server.nodes.nodes import Nodes
from stateline.server.state.workers import Workers
from stateline_store import InvalidArgumentError, NotPresentError, StatelineError
from stateline_store.clock import now_ms
from stateline_store.snapshots.copied_files import LeavingFile
from stateline_store.snapshots.snapshot_directory import SnapshotDirectory
from stateline_store.snapshots.store_copies import StoreCopy
from stateline_store.steps import reached
from stateline_store.task_id import TaskId

# Between two files: the other end writes, and looks at what it has.
_NEXT_FILE_S = 600.0
# What the limit lets through in this time is sent at once: many who share it all hear something within `SILENT_S`.
_PIECE_S = 0.25

_log = seldom(__name__)


class Throttle:
    """Limits the bytes per second of all that share it. For the event loop's thread. -1 is no limit."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._free_s = 0.0  # when what was taken so far is paid for, by the loop's clock

    async def take(self, size: int) -> None:
        if self._per_second < 0:
            return
        now_s = asyncio.get_running_loop().time()
        begins_s = max(now_s, self._free_s)
        self._free_s = begins_s + size / self._per_second
        if begins_s > now_s:
            await asyncio.sleep(begins_s - now_s)


class CopySender:
    """One per server process, which has its share of the limit. For the event loop's thread."""

    def __init__(self, config: Config, topology: Topology, workers: Workers, nodes: Nodes) -> None:
        self._topology, self._workers, self._nodes = topology, workers, nodes
        self._limit = config.node_copy_max_bytes_per_second
        share = self._limit / config.server_processes if self._limit > 0 else -1
        self._throttle = Throttle(share)
        self._piece_bytes = PIECE_BYTES if share < 0 else max(1, min(PIECE_BYTES, int(share * _PIECE_S)))
        self._snapshots = SnapshotDirectory(config.state_dir / topology.application_id)
        self._limits = config.server_snapshots_max, config.server_snapshots_max_bytes

    async def send(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hello: Hello, _: ProvenConnection
    ) -> None:
        """Answer what this node asks for, until it hangs up or is silent for too long."""
        try:
            asked = await heard(reader)
            if why := self._refusal(hello):
                say(writer, {"refused": why, "for_good": True})
                return
            unfinished = await asyncio.to_thread(self._snapshots.begin, now_ms(), *self._limits)
            try:
                copy = await self._linked(asked, unfinished.id)
                say(writer, {"copy": copy.to_json()})
                while True:
                    await self._send_file(await heard(reader, _NEXT_FILE_S), copy, unfinished.path, writer, hello.node)
            finally:
                unfinished.close()
                await asyncio.to_thread(self._snapshots.give_up, unfinished.id)
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError) as error:
            _log.debug("Node %r asks for no more files: %r", hello.node, error)
        except (StatelineError, KeyError, TypeError, ValueError) as error:
            why = str(error) if isinstance(error, StatelineError) else f"Not understood: {error!r:.500}"
            _log.info("Files that node %r asks for are not sent: %s", hello.node, why)
            say(writer, {"refused": without_paths(why), "for_good": False})

    def _refusal(self, hello: Hello) -> str:
        """Return why this node gets no files at all, empty if it may get some."""
        if hello.topology != self._topology.digest():
            return "it runs another topology"
        return "node.copy.max.bytes.per.second = 0 there" if self._limit == 0 else ""

    async def _linked(self, asked: dict[str, Any], snapshot_id: str) -> StoreCopy:
        task_id = TaskId.parse(str(asked["task"]))
        places = [(str(store), task_id.partition) for store in asked["stores"]]
        linked = await self._workers.link_for_copy(str(task_id), snapshot_id, places)
        reached("copy:linked")
        if not linked.parts:
            raise NotPresentError(f"The stores of task {task_id} have nothing yet.")
        path = self._snapshots.path / snapshot_id
        return await asyncio.to_thread(StoreCopy.of, self._nodes.own.directory, linked.topics, linked.parts, path)

    async def _send_file(
        self, asked: dict[str, Any], copy: StoreCopy, folder: Path, writer: asyncio.StreamWriter, node: str
    ) -> None:
        name, offset = str(asked["file"]), int(asked["from"])
        if name not in copy.files:  # so no other path is ever opened
            raise InvalidArgumentError(f"{name!r:.200} is none of the files.")
        file = await asyncio.to_thread(LeavingFile, folder / name, copy.files[name], offset)
        with file:
            say(writer, {"bytes": file.size - offset})
            while piece := await asyncio.to_thread(file.read, self._piece_bytes):
                await self._throttle.take(len(piece))
                writer.write(piece)
                async with asyncio.timeout(SILENT_S):
                    await writer.drain()
                self._nodes.traffic.copied_bytes[node, "sent"] += len(piece)
                reached("copy:piece-sent")
            say(writer, {"digest": file.digest})
