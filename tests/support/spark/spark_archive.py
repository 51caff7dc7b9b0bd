"""The class archive of Spark's JVM, recorded once per machine, so that each of many drivers starts in half the time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyspark

from support import CACHE
from support.kafka.maven import one_at_a_time

_NAME = f"spark-{pyspark.__version__}.jsa"
_RECORD = (
    "import sys; from pathlib import Path; from stateline.config.settings import load_config;"
    "from stateline.spark.session import record_class_archive;"
    "record_class_archive(load_config('archive'), Path(sys.argv[1]))"
)


def class_archive() -> Path:
    """The file; recorded first, in 20 s, when there is none."""
    archive = CACHE / _NAME
    with one_at_a_time("spark"):
        if not archive.exists():
            subprocess.run([sys.executable, "-c", _RECORD, str(archive)], check=True, timeout=200)
    return archive


def put_class_archive(state_dir: Path) -> None:
    """Let the drivers of this state directory find it."""
    (state_dir / ".cache").mkdir(parents=True)
    (state_dir / ".cache" / _NAME).symlink_to(class_archive())
