"""State directories and topics of released versions: how they are made, and what is in them.

`python -m golden.golden_state`, with `tests` on the path, makes that of this version. It is kept as
`tests/golden/<version>.tar.xz`:

    log.db          the embedded log: input, changelogs, results
    state/          the state directory of a worker that has committed all input
    rows.json       {store's directory: {"position": …, "rows": {key: value}}}, keys and values in hexadecimal
"""

from __future__ import annotations

import json
import random
import tarfile
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

from golden import golden_app
from golden.golden_app import APPLICATION, INPUT, OUTPUT, PARTITIONS
from stateline import __version__
from stateline.log.embedded import EmbeddedLog
from stateline.worker.tasks.task import TaskState
from stateline_store import IsolationLevel, TopicPartition
from stateline_store.rocksdb.offline_store import OfflineStore
from stateline_store.scan import KeyRange
from support.processes.running_worker import configured, create, eventually, produce, running

ARCHIVES = Path(__file__).parent
_FIRST_MS = 4_102_444_800_000  # 2100: no broker and no clock expires what is of then

_TASKS = 8  # four subtopologies of two partitions each

Rows: TypeAlias = dict[str, Any]


def send(log: EmbeddedLog, part: int) -> None:
    """Write a part of the input: it is the same for each version."""
    chance = random.Random(part)
    for topic in INPUT:
        records = []
        for n in range(120):
            key, letter = f"k{chance.randrange(12)}", chance.choice("abcd")
            key = letter if topic in ("names", "codes") else key
            value = None if chance.random() < 0.08 else f"{letter}{n}"
            at_ms = _FIRST_MS + part * 120_000 + n * 1_000 - chance.choice([0, 0, 0, 4_000, 30_000])
            records.append((key.encode(), None if value is None else value.encode(), at_ms, [("n", b"%d" % n)]))
        produce(log, topic, records)


def open_log(root: Path) -> EmbeddedLog:
    return EmbeddedLog(root / "log.db")


def make_topics(log: EmbeddedLog) -> None:
    create(log, {topic: 1 if topic == "codes" else PARTITIONS for topic in (*INPUT, *OUTPUT)})


def work(root: Path, log: EmbeddedLog) -> Rows:
    """Run a worker until it has committed all input; return what its stores have then."""
    app = golden_app.build()
    config = configured(app, root / "state", processing__guarantee="exactly_once_v2")
    read = {topic.name for topic in app.topology().topics_read().values()} - {"codes"}  # no group reads global tables
    with closing(log.admin()) as admin, running(app, config, log) as worker:

        def is_at_end() -> bool:
            there = admin.topics(read)
            partitions = [TopicPartition(name, n) for name, info in there.items() for n in range(info.partitions)]
            committed = admin.committed(APPLICATION, partitions)
            ends = admin.committed_ends(partitions)
            # A transaction's marker is behind its last record.
            left = [end - committed.get(p, 0) - (end > 0 and p.topic not in INPUT) for p, end in ends.items()]
            tasks = list(dict(worker.tasks.all).values())
            restored = [
                task.state is TaskState.RUNNING
                and all(store.position(IsolationLevel.READ_COMMITTED) for _, store in task.stores.transactional)
                for task in tasks
            ]
            return there.keys() == read and not any(left) and len(restored) == _TASKS and all(restored)

        eventually(is_at_end, "all input is committed")
    return rows_in(root)


def rows_in(root: Path) -> Rows:
    """What each database below a state directory has."""
    home, found = root / "state" / APPLICATION, Rows()
    for current in sorted(home.glob("**/CURRENT")):
        with OfflineStore(current.parent) as store, store.scan(KeyRange()) as rows:
            found[current.parent.relative_to(home).as_posix()] = {
                "position": store.commit.position.to_json(),
                "rows": {key.hex(): value.hex() for key, value in rows},
            }
    return found


def make(archive: Path) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        with closing(open_log(root)) as log:
            make_topics(log)
            send(log, 0)
            found = work(root, log)
        (root / "rows.json").write_text(json.dumps(found), encoding="utf-8")
        with tarfile.open(archive, "w:xz") as packed:
            for name in ("log.db", "state", "rows.json"):
                packed.add(root / name, name, filter=_needed)


def _needed(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return None if Path(entry.name).name.startswith("LOG") else entry  # RocksDB's messages


if __name__ == "__main__":
    make(ARCHIVES / f"{__version__}.tar.xz")
