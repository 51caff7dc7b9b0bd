"""Bring an application back from its backups after its changelogs were lost: `restore --changelogs-lost`.

1. Fetch and check the stores of each task. *Crash: files in ``copies``, which nobody takes.*
2. Begin, as a reset does (`deployment.stores.resets`). *Crash here and below: no worker starts, on any machine.*
3. Delete the changelogs that an interrupted restore has left, and create them.
4. For each task: place its stores, write their rows into the changelogs, and commit the new offsets in the stores.
5. Set the group's offsets, and end as a reset does.

The same command again begins with the first step. Other machines delete their older stores, and read the changelogs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from stateline.backup.declared_parts import as_declared, undeclared
from stateline.backup.location import BackupLocation
from stateline.backup.reading import backups, fetch, tasks
from stateline.cli.backup.restorable import (
    NO_TASK,
    missed_input,
    other_topics,
    refuse_records,
    refuse_repeats,
    rewound,
    way_out,
)
from stateline.cli.reset.execution import Execution, Say
from stateline.cli.reset.running import running_here
from stateline.cli.table import Row
from stateline.config.settings import Config
from stateline.deployment.configured_log import configured_log
from stateline.deployment.stores.discarding import settle_resets
from stateline.deployment.stores.resets import Reset, ResetWork, newest_reset, say_followed, without_stale
from stateline.deployment.topics import ensure_topics, refusals
from stateline.dsl.app import App
from stateline.log.interface import Admin, Headers, Log, LogRow, OffsetNote, Producer
from stateline.model.internal_topics import ConfiguredTopics
from stateline.model.store_definition import StoreDefinition
from stateline.model.topology import Subtopology, Topology
from stateline.processing.changelog import OWNER_EPOCH, position_headers, types_headers
from stateline.processing.changelog_rows import log_rows, produce_rows
from stateline.processing.operators.held_origins import held_origin
from stateline_store import (
    DamagedDataError,
    DoesNotExistError,
    IsolationLevel,
    RetryLaterError,
    StateDirectory,
    TopicPartition,
    TransactionalStore,
)
from stateline_store.clock import now_ms
from stateline_store.files.directory import holds_database
from stateline_store.snapshots.backup import Backup
from stateline_store.snapshots.store_copies import CopyDirectory
from stateline_store.state_store import StoreContext
from stateline_store.steps import reached
from stateline_store.task_id import TaskId

# A store without rows has a Position too. A delete of this key has it, which is a key of every kind of store.
_NO_ROW: LogRow = (bytes(16), None, 0)


def restored_without_changelogs(
    app: App, config: Config, backup_id: str | None, only: Sequence[int], say: Say
) -> list[Row]:
    """Restore each task of the subtopologies with stores, or of `only` these. Returns a row for each task.

    Nothing is changed if a subtopology cannot be restored exactly or a changelog has records (`InvalidArgumentError`),
    no backup has a task (`DoesNotExistError`), or anything of the application runs (`RetryLaterError`)."""
    topology = app.configured_topology(config)
    with closing(configured_log(config)) as log:
        restore, execution = _Restore(config, topology, log), Execution(config, topology, log, say)
        if here := running_here(config):
            raise execution.refusal(here)
        with closing(log.admin()) as admin:
            chosen = rewound(topology, only, admin.topics())
            work = restore.prepared(chosen, backup_id, admin)
        execution.run(work, restore.steps)
    return restore.rows


class _Restore:
    def __init__(self, config: Config, topology: Topology, log: Log) -> None:
        self._config, self._topology, self._log = config, topology, log
        self._location = BackupLocation.of(config)
        self._directory = StateDirectory(config.state_dir, config.application_id)
        self._reset: Reset | None = None  # the newest before this restore
        self._begun: dict[str, Backup] = {}  # by task
        self._offsets: dict[TopicPartition, int] = {}
        self._notes: dict[TopicPartition, OffsetNote] = {}
        self._ids: dict[str, str] = {}
        self.rows: list[Row] = []

    def prepared(self, chosen: Sequence[Subtopology], backup_id: str | None, admin: Admin) -> ResetWork:
        """Fetch the stores, and decide where each input continues. Changes nothing else."""
        self._reset = before = newest_reset(self._log, self._config.application_id)
        whole = list(backups(self._location, backup_id))
        found = [as_declared(each, self._topology) for each in whole]
        own: tuple[str, ...] = ()
        if before is not None and before.state == "begun" and before.work is not None and before.work.backup:
            own = before.work.changelogs
        else:
            settle_resets(self._config, self._log, self._topology.target)
        stores = [store for each in chosen for store in each.stores]
        logged = [store.changelog(self._topology.application_id) for store in stores if store.source is None]
        changelogs = tuple(name for name in logged if name is not None)
        refuse_records(admin, [name for name in changelogs if name not in own], self._topology.target)
        topics = admin.topics()
        for error in refusals(self._topology, topics):
            raise error
        self._ids = {name: info.topic_id for name, info in topics.items()}
        for subtopology in self._topology.subtopologies:
            if subtopology not in chosen:
                self._note_if_lost(subtopology, found, admin)
                continue
            partitions = max(topics[topic.name].partitions for topic in subtopology.sources)
            for number in range(partitions):
                task = str(subtopology.task_id(number))
                backup, why = self._fetched(subtopology, task, found)
                own_offsets = self._note(task, backup)
                missed = missed_input(self._topology, subtopology, own_offsets, admin)
                size = backup.of_task(task).copy.size_bytes
                row = {"task": task, "backup": backup.id, "node": backup.node, "outcome": "restored", "bytes": size}
                self.rows.append({**row, "why": f"{why} {missed}".strip()})
        if whole and (gone := undeclared(whole[0], self._topology)):
            self.rows.append({**NO_TASK, "outcome": "left out", "why": gone})
        ordinals, names = tuple(each.ordinal for each in chosen), tuple(store.name for store in stores)
        newest = max((each.id for each in self._begun.values()), default="none")
        return ResetWork(subtopologies=ordinals, stores=names, changelogs=changelogs, backup=newest)

    def _is_stale(self, subtopology: Subtopology, backup: Backup) -> bool:
        """Whether this subtopology was reset since the backup. A table that was reset alone does not count."""
        if self._reset is None:
            return False
        stale = self._reset.stale_in_backup(backup.reset_epoch, backup.id)
        return stale.everything or any(each.name in stale.stores for each in subtopology.stores if each.source is None)

    def _fetched(self, subtopology: Subtopology, task: str, found: Sequence[Backup]) -> tuple[Backup, str]:
        """Return the newest usable backup of this task, and why no newer one is."""
        topics, why = {topic for backup in found for topic in backup.committed.get(task, ())}, ""
        ids = {topic.name: self._ids.get(topic.name, "") for topic in subtopology.sources}
        for each in found:
            if task not in each.committed:
                continue
            if self._is_stale(subtopology, each):
                why = why or f"Its stores were reset since the backup {each.id}."
                continue
            backup = without_stale(each, self._reset)
            replaced = {name: each for name, each in ids.items() if backup.copy.topics.get(name, each) != each}
            if replaced:
                why = why or other_topics(replaced, self._topology)
                continue
            if topics - backup.committed[task].keys():
                why = why or f"The backup {backup.id} of node {backup.node} has a part of its input alone."
                continue
            try:
                if task in tasks(backup):
                    arriving = CopyDirectory(self._directory.application, task)
                    fetch(self._location, backup, task, self._topology, arriving)
            except (DamagedDataError, DoesNotExistError) as error:
                why = why or str(error)
                continue
            self._begun[task] = backup
            tables = {part.store for part in each.of_task(task).copy.parts} - {part.store for part in backup.copy.parts}
            return backup, f"{why} Reset since, so read again: {', '.join(sorted(tables))}." if tables else why
        raise DoesNotExistError(
            f"{self._location.url} has no backup of task {task} to restore. {why} "
            + way_out(self._topology, subtopology)
        )

    def _note(self, task: str, backup: Backup) -> dict[TopicPartition, int]:
        """Let the input of this task continue where it was in the backup. Returns its next offsets."""
        committed, number = backup.committed[task], TaskId.parse(task).partition
        own = {TopicPartition(topic, number): at for topic, (at, _, _) in committed.items()}
        self._offsets |= own
        self._notes |= {TopicPartition(topic, number): OffsetNote(*note) for topic, (_, *note) in committed.items()}
        return own

    def _note_if_lost(self, subtopology: Subtopology, found: Sequence[Backup], admin: Admin) -> None:
        """Let tasks without such stores continue where the group is. If its offsets were lost, that is where they were
        in the newest backup."""
        usable = [backup for backup in reversed(found) if not self._is_stale(subtopology, backup)]
        newest = {task: backup for backup in usable for task in backup.committed}
        for task, backup in newest.items():
            places = [TopicPartition(topic, TaskId.parse(task).partition) for topic in backup.committed[task]]
            is_own = TaskId.parse(task).subtopology == subtopology.ordinal
            if is_own and not admin.committed(self._config.application_id, places):
                refuse_repeats(self._topology, subtopology)
                self._note(task, backup)

    def steps(self, reset: Reset, work: ResetWork, admin: Admin) -> None:
        admin.delete_topics(sorted(admin.topics(work.changelogs)) if work.changelogs else [])
        reached("lost:changelogs-deleted")
        # No other changelog: a worker refuses a subtopology by its missing changelog, and would read an empty one.
        ensure_topics(self._topology, admin, configured=ConfiguredTopics.of(self._config), only=work.changelogs)
        reached("lost:changelogs-created")
        for task in self._directory.tasks():
            if TaskId.parse(task).subtopology in work.subtopologies:
                with self._directory.lock_task(task) as lock:
                    self._directory.delete_task(lock)
        reached("lost:stores-deleted")
        with closing(self._log.producer()) as producer:
            for task, backup in self._begun.items():
                if task in tasks(backup):  # otherwise its stores had nothing yet
                    self._bring_back(task, producer)
                    reached("lost:task-restored")
        admin.alter_offsets(self._config.application_id, self._offsets, self._notes)
        reached("lost:offsets-set")
        say_followed(self._directory.application, reset.epoch)

    def _bring_back(self, task: str, producer: Producer) -> None:
        subtopology = self._topology.subtopology_at(TaskId.parse(task).subtopology)
        assert subtopology is not None, "its backup was looked for"
        known = self._begun[task].copy.topics
        ids = {topic.name: self._ids[topic.name] for topic in subtopology.sources if topic.name in known}
        with self._directory.lock_task(task):
            if not CopyDirectory(self._directory.application, task).place(self._directory.task(task), ids):
                raise RetryLaterError(f"The stores of task {task} were changed while they were restored: try again.")
            reached("lost:stores-placed")
            for store in subtopology.stores:
                place = self._directory.store(task, store.name, timestamped=store.timestamped)
                name = store.changelog(self._topology.application_id)
                if store.source is None and name is not None and holds_database(place):
                    changelog = TopicPartition(name, TaskId.parse(task).partition)
                    context = StoreContext(task, self._directory.task(task), changelog, sync=True, types=store.types)
                    _write(store, context, changelog, producer)


def _write(definition: StoreDefinition, context: StoreContext, changelog: TopicPartition, producer: Producer) -> None:
    """Write the rows of a placed store into its changelog, and commit the offset of the last."""
    store = definition.build()
    assert isinstance(store, TransactionalStore)
    origin_of = held_origin(definition)

    def produce(rows: Sequence[LogRow], last: Headers = ()) -> None:
        if origin_of is not None:
            store.rollback()  # forget the origins of the rows before
            store.keep_origins(
                {key: origin_of(key, value) for key, value, _ in rows if key is not None and value is not None}
            )
        produce_rows(producer, changelog, store, rows, last)

    store.init(context)
    try:
        position, waiting = store.position(IsolationLevel.READ_COMMITTED), list[LogRow]()
        for changes in store.committed_changes():
            produce(waiting)
            waiting = log_rows(changes, now_ms())
        produce(waiting or [_NO_ROW], (*position_headers(position), *types_headers(definition.types)))
        written = producer.flush()
        reached("lost:rows-written")
        # Epochs of later owners are offsets of the new changelog, and may be smaller than that of the old one.
        epochs = {OWNER_EPOCH: 0} if store.committed_offset(OWNER_EPOCH) else {}
        store.commit({changelog: written[changelog], **epochs})
    finally:
        store.close()
