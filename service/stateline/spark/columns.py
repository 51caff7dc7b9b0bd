"""Names of columns with a meaning. Columns whose names begin with ``_`` stay out of the record's value."""

from __future__ import annotations

# Input: columns of every frame of a topic.
KEY = "_key"  # in the topic's key type
TIMESTAMP = "_timestamp"  # TIMESTAMP
PARTITION = "_partition"  # INT
OFFSET = "_offset"  # BIGINT

# Output, and input of frames with tombstones.
DELETED = "_deleted"  # BOOLEAN: the key was removed, the row is a tombstone; null counts as false
ORDER = "_order"  # BIGINT: orders rows of one key in a micro-batch
TOPIC = "_topic"  # STRING: the topic of the row. Null, or no such column: `writes`
