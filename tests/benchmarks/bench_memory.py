"""Resident memory of a worker that keeps a table of 2 million keys in 4 partitions: at most 600 MB.

The keys are ingested and then all overwritten at full speed, commits every 100 ms: that is when buffers,
memtables, caches and librdkafka's queues are full. The figure is the kernel's own peak (VmHWM).
"""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path

from cores import memory_mb
from figures import at_most
from processes import Table, worker
from topic import Group, loaded_broker

KEYS = 2_000_000
RECORDS = 2 * KEYS


def main() -> None:
    with loaded_broker(RECORDS, KEYS) as servers, tempfile.TemporaryDirectory() as directory:
        state_dir = Path(directory)
        with closing(Group(servers)) as group, worker(servers, state_dir, {}) as child:
            with closing(Table(state_dir)) as table:
                table.until_all(group, RECORDS)
                with closing(table.reader(0, state_dir / "scratch")) as reader:
                    rows = sum(1 for _ in reader.range(None, None))
            resident, peak = memory_mb(child.pid, "VmRSS"), memory_mb(child.pid)
    print(f"  about {4 * rows:,} keys; at the end {resident:.0f} MB, peak {peak:.0f} MB")
    at_most("worker's resident memory at 2 million keys", peak, 600, " MB")


if __name__ == "__main__":
    main()
