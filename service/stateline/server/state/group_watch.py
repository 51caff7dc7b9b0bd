"""Ask Kafka about the workers' group and the ends of changelogs, for copies whose owner is not on this node.

Only Kafka can answer three questions:

- May another worker have a task? Not while all members of the group are workers of this directory. A member is
  recognized by its instance file (`deployment.workers.instance_file`) or client id (`worker.files.deployment_files`).
- Did another worker continue the task? Committed offsets have the committer's client id.
- How far behind is a copy? Kafka has the changelog's committed end, and the copy its last applied offset.

The embedded log is never asked: it is on one machine, and its workers share a directory.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeVar

from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log
from stateline.log import Log
from stateline.log.interface import Admin, GroupMember
from stateline_store import DoesNotExistError, StatelineError, TopicPartition
from stateline_store.clock import boot_ms

T = TypeVar("T")

# Seconds between questions: while a copy has no owner here or a request needs the ends, and otherwise.
_ALERT_INTERVAL_S, _CALM_INTERVAL_S = 0.5, 5.0
# For this long, an answer without other workers counts. A new worker elsewhere needs longer until its first commit: it
# must join, get the task and open it.
ALONE_MS = 250
# For this long, ends of changelogs count. After a request for them, they are asked again for `_WANTED_MS`.
_FRESH_MS, _WANTED_MS = 3_000, 5_000
# Deadline of the question for ends. The group must be asked again by then.
_ENDS_PATIENCE_S = 2.0
# Seconds between questions while the group assigns partitions, and the shortest time between two early questions.
_DECIDING_INTERVAL_S, _SOON_MS = 0.1, 50
# Then the normal interval applies again: a group may have no partitions to assign.
_DECIDING_MS = 60_000
# After this time without an answer, Kafka counts as unanswered.
_UNANSWERED_MS = 1_000
_LOOK_INTERVAL_S = 0.01

_log = logging.getLogger(__name__)


class GroupState(NamedTuple):
    """Kafka's answer about the group, asked at `at_ms` (`clock.boot_ms`).

    `committed_by` has the client id that last committed each requested source."""

    at_ms: int
    members: tuple[GroupMember, ...]
    committed_by: Mapping[TopicPartition, str]

    @property
    def is_decided(self) -> bool:
        """Whether partitions are assigned. During a rebalance, Kafka shows members without partitions."""
        return not self.members or any(member.partitions for member in self.members)


class Ends(NamedTuple):
    """Kafka's answer about the ends of existing changelogs. `at_ms` as in `GroupState`."""

    at_ms: int
    offsets: Mapping[TopicPartition, int]


class GroupRequest(NamedTuple):
    """Questions besides the members: the ends of these changelogs, and who last committed these sources.

    `is_urgent`: a copy here has no known owner."""

    changelogs: Collection[TopicPartition]
    sources: Collection[TopicPartition]
    is_urgent: bool


class GroupWatch:
    """One per server process. Run `keep` on its event loop, and call everything else on the loop's thread.

    `is_own` and `is_own_id` recognize workers of this directory, by member and by client id. `wanted` returns the next
    questions. `on_change` is called when the answer of `may_be_elsewhere` changes. `has_neighbours` returns whether
    another node is known, in the group or not.
    """

    def __init__(
        self,
        config: Config,
        group: str,
        is_own: Callable[[GroupMember], bool],
        is_own_id: Callable[[str], bool],
        wanted: Callable[[], GroupRequest],
        on_change: Callable[[], None],
        has_neighbours: Callable[[], bool] = lambda: False,
    ) -> None:
        self._config = config
        self._group = group
        self._is_own = is_own
        self._is_own_id = is_own_id
        self._wanted = wanted
        self._on_change = on_change
        self._has_neighbours = has_neighbours
        self._log: Log | None = None
        self._admin: Admin | None = None
        self.look: GroupState | None = None
        self.assigned: GroupState | None = None
        """The last answer with assigned partitions."""
        self.on_assigned: Callable[[], object] = lambda: None
        """Called when the assignment has changed, and at the first answer after an outage of Kafka."""
        self._decided_at_ms = boot_ms()
        self._was_unanswered = False  # since the last call of `on_assigned`
        self.ends: Ends | None = None
        self.ends_wanted_until_ms = 0
        self.elsewhere: set[TopicPartition] = set()
        self.asked = asyncio.Event()
        self._since_ms = 0  # earlier answers do not count
        self._alone_since_ms = 0  # the last change of `has_others`
        self.unanswered_since_ms: int | None = None  # by `boot_ms`
        self._fault = ""
        self._asking = threading.Lock()  # held while Kafka is asked
        self._ended = False

    def may_be_elsewhere(self, since_ms: int = 0) -> bool:
        """Whether a worker of another directory may have tasks of this group.

        Answers of Kafka before `since_ms` (`clock.boot_ms`) do not count. During an outage of Kafka, the last answer
        counts if no other node is known: to join the group, a worker needs Kafka, too. A known node may reach Kafka.
        """
        if self.has_said(since_ms) and not self._is_settled:
            self.asked.set()
            return True
        return self.has_others(since_ms) or (self.is_unanswered and self._has_neighbours())

    def ask_soon(self) -> None:
        """Ask Kafka now, unless the last question is less than 50 ms old."""
        if self.look is None or boot_ms() - self.look.at_ms >= _SOON_MS:
            self.asked.set()

    def has_said(self, since_ms: int) -> bool:
        """Whether Kafka has reported the group's members since `since_ms` (`clock.boot_ms`). If not, ask it now."""
        self._since_ms = max(self._since_ms, since_ms)
        if self.look is None or self.look.at_ms < since_ms:
            self.asked.set()
            return False
        return True

    async def settle(self) -> bool:
        """Wait until Kafka has answered, at most 1 s. Returns False if no wait was needed."""
        began_ms = boot_ms()
        self.ends_wanted_until_ms = began_ms + _WANTED_MS
        if self._is_all_known(began_ms):
            return False
        while not self._is_all_known(began_ms) and boot_ms() < began_ms + _UNANSWERED_MS:
            self.asked.set()
            await asyncio.sleep(_LOOK_INTERVAL_S)
        return True

    async def until_ends_are_known(self) -> None:
        """Wait until the ends of changelogs are at most 3 s old. Returns without them after 1 s, or if Kafka does not
        answer."""
        self.ends_wanted_until_ms, began_ms = boot_ms() + _WANTED_MS, boot_ms()
        while self.ends is None or boot_ms() - self.ends.at_ms >= _FRESH_MS:
            if self.is_unanswered or boot_ms() >= began_ms + _UNANSWERED_MS:
                return
            self.asked.set()
            await asyncio.sleep(_LOOK_INTERVAL_S)

    def end(self, changelog: TopicPartition) -> tuple[int, int] | None:
        """Return the changelog's committed end, and when Kafka was asked (`clock.boot_ms`). Returns None if the end is
        unknown or older than 3 s. The call also requests new ends."""
        self.ends_wanted_until_ms = boot_ms() + _WANTED_MS
        age_ms = _FRESH_MS if self.ends is None else boot_ms() - self.ends.at_ms
        if age_ms >= _ALERT_INTERVAL_S * 1000:
            self.asked.set()
        end = None if self.ends is None or age_ms >= _FRESH_MS else self.ends.offsets.get(changelog)
        return None if self.ends is None or end is None else (end, self.ends.at_ms)

    async def keep(self) -> None:
        """Ask Kafka repeatedly, until cancelled."""
        try:
            while True:
                wanted = self._wanted()
                self.unanswered_since_ms = self.unanswered_since_ms or boot_ms()
                look = await self._on_thread(partial(self._ask, wanted.sources))
                if look is not None:
                    self.take(look)
                self.asked.clear()
                is_alert = wanted.is_urgent or boot_ms() < self.ends_wanted_until_ms
                if look is not None and is_alert:
                    self.ends = await self._on_thread(partial(self._ask_ends, wanted.changelogs))
                interval_s = _ALERT_INTERVAL_S if is_alert else _CALM_INTERVAL_S
                if look is not None and not look.is_decided and look.at_ms < self._decided_at_ms + _DECIDING_MS:
                    interval_s = _DECIDING_INTERVAL_S
                try:
                    await asyncio.wait_for(self.asked.wait(), interval_s)
                except TimeoutError:
                    continue
                await asyncio.sleep(_ALERT_INTERVAL_S if look is None else 0)
        finally:
            self._ended = True
            self._close_admin()

    @property
    def _is_settled(self) -> bool:
        look = self.look
        if look is not None and boot_ms() - look.at_ms <= ALONE_MS and look.at_ms >= self._since_ms:
            return True
        return self.is_unanswered

    @property
    def is_unanswered(self) -> bool:
        """Whether Kafka does not answer."""
        since_ms = self.unanswered_since_ms
        return since_ms is not None and boot_ms() - since_ms >= _UNANSWERED_MS

    def _is_all_known(self, at_ms: int) -> bool:
        """Whether Kafka has answered everything that decides whether copies may answer, or does not answer at all.

        An answer counts if Kafka was asked at most 250 ms before `at_ms`. If the group has members of other
        directories, only the ends of changelogs decide. Ends are asked after the group, so the look at the group is
        often older than 250 ms when the ends arrive.
        """
        look, ends = self.look, self.ends
        if self.is_unanswered:
            return True
        if look is None or look.at_ms < self._since_ms:
            return False
        if self._has_others(look):
            return ends is not None and ends.at_ms >= at_ms - ALONE_MS
        if not self._is_settled:
            return False
        return not self.elsewhere or (ends is not None and ends.at_ms >= max(at_ms - ALONE_MS, self._alone_since_ms))

    def was_elsewhere(self, sources: Collection[TopicPartition]) -> bool:
        """Whether a worker of another directory has, or may have, processed these sources since the last commit of a
        worker here."""
        return not self.elsewhere.isdisjoint(sources)

    def _has_others(self, look: GroupState) -> bool:
        return not all(map(self._is_own, look.members))

    def has_others(self, since_ms: int = 0) -> bool:
        """Whether the group had a worker of another directory in Kafka's last answer. True if Kafka has not answered
        since `since_ms` (`clock.boot_ms`)."""
        return not self.has_said(since_ms) or self.look is None or self._has_others(self.look)

    def take(self, look: GroupState) -> None:
        """Note Kafka's answer about the group."""
        self._was_unanswered |= self.is_unanswered
        before, self.look, self.unanswered_since_ms = self.look, look, None
        try:
            self._note_others(look)
            if before is not None and self._has_others(before) and not self._has_others(look):
                self.ends = None  # the other worker may have committed since
            if before is None or self._has_others(look) is not self._has_others(before):
                self._alone_since_ms = look.at_ms
                self._on_change()
            if look.is_decided:
                was, self.assigned, self._decided_at_ms = self.assigned, look, look.at_ms
                if was is None or was.members != look.members or self._was_unanswered:
                    self._was_unanswered = False
                    self.on_assigned()
        except StatelineError as error:  # this directory's own id cannot be read now
            _log.warning("The workers of this directory are not known now: %s", error)

    def _note_others(self, look: GroupState) -> None:
        for source, client_id in look.committed_by.items():
            if self._is_own_id(client_id):
                self.elsewhere.discard(source)
            else:
                self.elsewhere.add(source)
        for member in look.members:
            if not self._is_own(member):  # a worker of this directory restores first, and counts from its commit on
                self.elsewhere |= member.partitions

    async def _on_thread(self, ask: Callable[[], T | None]) -> T | None:
        """Return the result of `ask`, or None if it raises."""
        loop = asyncio.get_running_loop()
        found: asyncio.Future[T | None] = loop.create_future()

        def run() -> None:
            answer = None
            with self._asking:
                try:
                    answer = ask()
                except Exception:  # noqa: BLE001 - the watch must go on: nothing else asks the group
                    _log.exception("Kafka could not be asked who has the tasks")
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(note, answer)
            self._close_admin()

        def note(answer: T | None) -> None:
            if not found.done():
                found.set_result(answer)

        # Not in a pool: a stopping server would wait many seconds for Kafka.
        threading.Thread(target=run, name="group-watch", daemon=True).start()
        return await found

    def _close_admin(self) -> None:
        """Close the admin client if the watch has ended and no question is open."""
        if self._ended and self._asking.acquire(blocking=False):
            admin, self._admin = self._admin, None
            self._asking.release()
            if admin is not None:
                admin.close()

    def _ask(self, sources: Collection[TopicPartition]) -> GroupState | None:
        """Return the group's state, or None if Kafka does not answer. Runs on its own thread."""
        at_ms = boot_ms()
        try:
            if self._log is None or self._admin is None:
                self._log = configured_log(self._config)
                self._admin = self._log.admin()
            members = tuple(self._admin.members(self._group))
            look = GroupState(at_ms, members, self._admin.committed_by(self._group, sources))
        except StatelineError as error:
            if str(error) != self._fault:
                _log.warning("Kafka does not say who has the tasks now: %s", error)
            self._fault = str(error)
            return None
        self._fault = ""
        return look

    def _ask_ends(self, changelogs: Collection[TopicPartition]) -> Ends:
        """Return the ends that Kafka gives within 2 s; none if it fails. Runs on its own thread, after `_ask`."""
        at_ms = boot_ms()
        assert self._log is not None, "made by the first look"
        assert self._admin is not None, "made with the log"
        try:
            with self._log.patience.for_all(_ENDS_PATIENCE_S):
                return Ends(at_ms, _ends_of(self._admin, changelogs))
        except StatelineError as error:  # no permission to read one, or one has no leader now
            _log.debug("The ends of changelogs are not known: %s", error)
            return Ends(at_ms, {})


def _ends_of(admin: Admin, changelogs: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
    try:
        return admin.committed_ends(changelogs)
    except DoesNotExistError:
        found = admin.topics({each.topic for each in changelogs})
        counts = {name: topic.partitions for name, topic in found.items()}
        return admin.committed_ends([each for each in changelogs if each.partition < counts.get(each.topic, 0)])
