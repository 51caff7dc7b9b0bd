"""A pipeline's driver as a process of its own, which tests kill: prints the number of each micro-batch.

python driver.py STATE_DIR [SETTING=VALUE …]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # as pytest's `pythonpath` does

from service.spark.departures import app, settings
from stateline.config.loading import load_config
from stateline.deployment.pipelines.status import PipelineStatus
from stateline.log.embedded import EmbeddedLog
from stateline.spark.drivers.several_pipelines import run_pipelines


def main(state_dir: str, *given: str) -> None:
    """Run the pipeline on the embedded log until SIGTERM."""
    config = load_config("flights", overrides=[*settings(state_dir), "pipeline.max.offsets.per.trigger=400", *given])
    log = EmbeddedLog(Path(state_dir) / "log.db")
    run_pipelines(app, ["hourly"], config, log, progress=say)


def say(status: PipelineStatus) -> None:
    """One line that the test reads."""
    sys.stdout.write(f"{status.batch_id}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
