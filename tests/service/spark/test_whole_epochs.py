"""A pipeline whose micro-batches are to be seen whole, from Spark to the answer."""

from __future__ import annotations

import threading
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from service.spark import departures as d
from stateline import serdes
from stateline.config.loading import load_config
from stateline.dsl.app import App
from stateline.log.embedded import EmbeddedLog
from stateline.spark.drivers.several_pipelines import run_pipelines
from support.processes.running_worker import configured, create, eventually, produce, running
from support.processes.served_here import Here, served_here
from support.run.length import long_only
from support.run.patience import HANGING_S

KEYS, PARTITIONS, ROUNDS = 300, 3, 5

app = App("rounds")
made = app.topic("made", key=serdes.string, value=serdes.json, schema="round long")
app.table("newest", key=serdes.string, value=serdes.json)


@app.pipeline(reads=made, writes="newest", key="_key", output_mode="append", whole_epochs=True, partitions=PARTITIONS)
def rounds(made: DataFrame) -> DataFrame:
    """Every key's newest round."""
    return made.select("_key", "round")


class Reader(threading.Thread):
    """Asks for all rows, again and again; which rounds each answer had."""

    def __init__(self, here: Here) -> None:
        super().__init__()
        self._here = here
        self._stopping = threading.Event()
        self.seen: list[set[int]] = []

    def run(self) -> None:
        while not self._stopping.is_set():
            answer = self._here.client.get("/v1/stores/newest/range", params={"limit": 1000})
            if answer.status_code == 200:
                entries = answer.json()["entries"]
                assert len(entries) in (0, KEYS)
                self.seen.append({entry["value"]["round"] for entry in entries})

    def stop(self) -> None:
        self._stopping.set()
        self.join(HANGING_S)


@long_only("test_pipeline_crashes.py asks for whole epochs all the while")
def test_every_answer_over_all_partitions_is_of_one_micro_batch(session: SparkSession, tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path / "log.db")
    create(log, {"made": PARTITIONS})
    state = tmp_path / "state"
    config = load_config("rounds", overrides=d.settings(str(state)))
    with running(app, configured(app, state, commit__interval__ms=1), log), served_here(state, app=app) as here:
        reader = Reader(here)
        reader.start()
        for number in range(ROUNDS):
            produce(log, "made", [(b"k%d" % key, b'{"round": %d}' % number, 1) for key in range(KEYS)])
            run_pipelines(app, ["rounds"], config, log, available_now=True, session=session)
        eventually(lambda: reader.seen[-1:] == [{ROUNDS - 1}], "the last micro-batch")
        reader.stop()
    assert all(len(rounds) <= 1 for rounds in reader.seen)
    assert len(set[int]().union(*reader.seen)) > 1, "a reader that sees the last one only proves nothing"
