"""Spark's Python processes collect garbage after each task, without the loaded code."""

from __future__ import annotations

import gc
import subprocess
import sys

from pyspark import TaskContext

from stateline.spark.reading.executor import spare_loaded_code

_TASKS = """
import gc
from pyspark import TaskContext
from stateline.spark.reading.executor import spare_loaded_code

TaskContext._setTaskContext(TaskContext())
for task in range(2):
    spare_loaded_code()
    later = [[] for _ in range(1_000)]
    print(gc.get_freeze_count())
"""


def test_tasks_of_a_process_spare_the_loaded_code_once() -> None:
    done = subprocess.run([sys.executable, "-c", _TASKS], capture_output=True, text=True, check=True)
    first, second = map(int, done.stdout.split())
    assert first > 10_000
    assert second <= first


def test_the_garbage_of_other_processes_stays_theirs() -> None:
    assert TaskContext.get() is None
    before = gc.get_freeze_count()
    spare_loaded_code()
    assert gc.get_freeze_count() == before
