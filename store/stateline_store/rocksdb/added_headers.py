"""Headers for a timestamped store that was declared without: at an opening, each row gets an empty list of them.

Rows are rewritten in batches, in the order of their keys. The row `layout` of the same batch says how far it has come
(`Layout.headers_up_to`), so a crash loses nothing, and the next opening continues there.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from stateline_store.files.commit_notice import CommitNotice
from stateline_store.layout import Layout
from stateline_store.rocksdb.engine import RocksDBEngine
from stateline_store.rows.headers import join_headers
from stateline_store.rows.timestamped_rows import join, split
from stateline_store.scan import KeyRange
from stateline_store.steps import reached

BATCH_BYTES = 8 * 1024 * 1024
_log = logging.getLogger(__name__)


def add_headers(database: RocksDBEngine, declared: Layout, notice: Path) -> None:
    """Rewrite the rows of a store that is declared with headers and has none, or has them in a part. Readers in other
    processes find no database meanwhile. Raises `DamagedDataError` for a row that is too short for its timestamp."""
    stored = database.layout
    if not declared.headers or (stored.headers and stored.headers_up_to is None):
        return
    _log.info("%s gets the headers of records: its rows are rewritten", database.directory)
    if notice.exists():  # who follows the files would take rows for those without headers
        CommitNotice(notice).withdraw()
    done = stored.headers_up_to
    start = b"" if done is None else bytes.fromhex(done) + b"\0"
    rows, size, count = dict[bytes, bytes](), 0, 0
    with database.scan(KeyRange(start, None)) as scan:
        for key, row in scan:
            found = split(row)
            rows[key] = join(join_headers(found.value, ()), found.timestamp)
            size, count = size + len(key) + len(row), count + 1
            if size >= BATCH_BYTES:
                database.rewrite(rows, replace(stored, headers=True, headers_up_to=key.hex()))
                reached("headers:batch-written")
                rows, size = {}, 0
    database.rewrite(rows, replace(stored, headers=True, headers_up_to=None))
    _log.info("%s has the headers of records from now on: %d rows have none yet", database.directory, count)
