"""Read the topic by which nodes find each other, and announce this node there."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from time import monotonic
from typing import TypeVar

from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log
from stateline.deployment.nodes_topic import (
    MOST_NODES,
    NodeEntry,
    ensure_nodes_topic,
    follow_nodes,
    nodes_partition,
    nodes_topic_id,
    say_node,
)
from stateline.log import Log
from stateline.log.interface import Admin
from stateline.server.contract.hidden_paths import without_paths
from stateline_store import DoesNotExistError, StatelineError

# How long the topic's consumer waits for records before it looks whether to stop.
_WAIT_S = 0.5
_RETRY_S = 2.0
# Between two checks whether the topic was created again.
_LOOK_INTERVAL_S = 10.0
# After so many announcements of other nodes, this node announces itself again. Readers of the topic keep only the
# newest `MOST_NODES`.
_CROWD, _CROWD_INTERVAL_S = MOST_NODES * 3 // 4, 10.0
# How long a leaving node waits for Kafka to accept its last record.
_LEAVE_S = 2.0

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Registry:
    """Reads on its own thread, from `start` to `stop`.

    - `told(node, entry, directory)` is called there for each new entry. `entry` is None for a node that left.
    `directory`
      is its last known one. The topic is first read to its end, so replaced entries are left out. Beyond `MOST_NODES`
      names, only the newest are passed.
    - `failed(why)` is called if the topic cannot be read or written, and with an empty text when it can again.
    - `entry` is this node's record; None if another process of the node writes it. It is written again if the topic was
      deleted, if a node of this name left, after `_CROWD` announcements of others, and for a new rival. A rival has
      this name and another directory, or this directory and another name. The later rival then finds the earlier one.
    """

    def __init__(
        self,
        config: Config,
        application_id: str,
        node: str,
        entry: NodeEntry | None,
        told: Callable[[str, NodeEntry | None, str], None],
        failed: Callable[[str], None],
    ) -> None:
        self._config = config
        self._application_id = application_id
        self._node, self._entry = node, entry
        self._told = told
        self._failed = failed
        self._said_in: str | None = None  # the id of the topic
        self._is_unsaid = False  # the newest record about this node is not its own
        self._is_seen = False  # its own record was read
        self._rivals: set[tuple[str, str]] = set()  # names and directories: came first, or were answered
        self._directories: dict[str, str] = {}
        self._unread: dict[str, NodeEntry | None] = {}  # by node, oldest record first
        self._since: set[str] = set()  # nodes with records after this node's
        self._crowded_at_s = -_CROWD_INTERVAL_S
        self._leaves = True
        self._stopping = threading.Event()
        self._fault = ""
        self._thread = threading.Thread(target=self._run, name="nodes", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, *, leaves: bool = True) -> None:
        """Stop the thread and wait for it, at most 3 s. If the node `leaves` and this process writes its record, delete
        the record."""
        self._leaves = leaves
        self._stopping.set()
        self._thread.join(_LEAVE_S + 2 * _WAIT_S)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with closing(configured_log(self._config)) as log, closing(log.admin()) as admin:
                    self._follow(log, admin)
            except StatelineError as error:
                self._note(f"Other nodes cannot be looked for: {error}")
                self._stopping.wait(_RETRY_S)

    def _note(self, fault: str) -> None:
        if fault and fault != self._fault:
            _log.warning("%s", fault)
        if fault != self._fault:
            self._failed(without_paths(fault))
        self._fault = fault

    def _follow(self, log: Log, admin: Admin) -> None:
        ensure_nodes_topic(self._application_id, admin)
        topic_id = nodes_topic_id(self._application_id, admin)
        if topic_id != self._said_in:
            self._say(log)
            self._said_in = topic_id
        look_at_s = monotonic() + _LOOK_INTERVAL_S

        def on_heard(heard: Sequence[tuple[str, NodeEntry | None]], is_read: bool) -> bool:
            nonlocal look_at_s
            self._note("")
            for node, entry in heard:
                self._hear(node, entry)
            if is_read:
                self._tell()
            if is_read and ((self._is_unsaid and not heard) or self._is_crowded_out()):
                self._say(log)
            if monotonic() >= look_at_s:
                look_at_s = monotonic() + _LOOK_INTERVAL_S
                if nodes_topic_id(self._application_id, admin) != topic_id:
                    raise DoesNotExistError(f"The topic {nodes_partition(self._application_id).topic} was deleted.")
            return not self._stopping.is_set()

        self._unread.clear()
        self._since.clear()
        try:
            follow_nodes(log, self._application_id, on_heard, _WAIT_S)
        finally:
            if self._entry is not None and self._stopping.is_set() and self._leaves:
                with log.patience.for_all(_LEAVE_S):
                    say_node(log, self._application_id, self._node, None)

    def _hear(self, node: str, entry: NodeEntry | None) -> None:
        _note_last(self._unread, node, entry)
        if entry is not None:
            _note_last(self._directories, node, entry.directory)
        if self._entry is None:
            return
        if node != self._node and len(self._since) < _CROWD:
            self._since.add(node)
        own, found = (self._node, self._entry.directory), (node, "" if entry is None else entry.directory)
        if entry is None:
            self._rivals = {rival for rival in self._rivals if rival[0] != node}
            self._is_unsaid |= node == self._node
        elif found == own:
            self._is_unsaid, self._is_seen = False, True
            self._since.clear()
        elif found[0] == own[0] or found[1] == own[1]:
            self._is_unsaid |= self._is_seen and found not in self._rivals
            if len(self._rivals) >= MOST_NODES:
                self._rivals.clear()
            self._rivals.add(found)

    def _is_crowded_out(self) -> bool:
        """Whether new readers of the topic may soon miss this node. True at most once in `_CROWD_INTERVAL_S`."""
        if len(self._since) < _CROWD or monotonic() < self._crowded_at_s + _CROWD_INTERVAL_S:
            return False
        self._crowded_at_s = monotonic()
        return True

    def _tell(self) -> None:
        for node, entry in self._unread.items():
            self._told(node, entry, self._directories.get(node, ""))
        self._unread.clear()

    def _say(self, log: Log) -> None:
        self._is_unsaid = False
        if self._entry is not None:
            say_node(log, self._application_id, self._node, self._entry)


def _note_last(kept: dict[str, T], node: str, value: T) -> None:
    """Keep the value as the newest. Beyond `MOST_NODES`, the oldest is dropped."""
    kept.pop(node, None)
    kept[node] = value
    if len(kept) > MOST_NODES:
        del kept[next(iter(kept))]
