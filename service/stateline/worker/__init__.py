"""The worker: reads topics, keeps stores, writes changelogs. Start one with `run_worker`."""

from stateline.worker.records import InputRecord, Output
from stateline.worker.run import run_worker
from stateline.worker.worker import Worker

__all__ = ["InputRecord", "Output", "Worker", "run_worker"]
