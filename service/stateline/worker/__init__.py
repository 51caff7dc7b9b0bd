"""The worker: reads topics, keeps stores, writes changelogs. `stateline.worker.run` starts one."""

from stateline.worker.records import InputRecord, Output

__all__ = ["InputRecord", "Output"]
