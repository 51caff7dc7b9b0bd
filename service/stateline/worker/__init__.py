"""The worker: reads topics, keeps stores, writes changelogs. `stateline.worker.run` starts one."""

from stateline.processing.records import InputRecord, Output

__all__ = ["InputRecord", "Output"]
