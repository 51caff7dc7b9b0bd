"""An application whose pipeline sums entries by account, and what its result topic must have: what each micro-batch
made that a marker names, once."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing

from service.spark.departures import read_all
from stateline.deployment.pipelines.epoch_marker import EpochMarker
from stateline.log import Log, NewTopic

_RECORDS = 60  # of each part
APPLICATION = """
from pyspark.sql import functions as F

from stateline import serdes
from stateline.dsl.app import App

app = App({name!r})
journal = app.topic("journal-{name}", key=serdes.string, value=serdes.json, schema="account string, amount long")

@app.pipeline(reads=journal, writes="sums-{name}", key="account")
def sums(journal):
    return journal.groupBy("account").agg(F.count("*").alias("n"), F.sum("amount").alias("total"))
"""

Update = tuple[str, int, int]  # account, entries, their sum


class AccountLedger:
    """The topics of this application, and what must be in that of the results."""

    def __init__(self, log: Log, name: str) -> None:
        self._log, self._name = log, name
        self._made = 0
        with closing(log.admin()) as admin:
            admin.create_topics([NewTopic(f"journal-{name}", 1), NewTopic(f"sums-{name}", 1)])

    def add(self) -> None:
        """Entries for accounts that come again and again."""
        with closing(self._log.producer()) as producer:
            for number in range(self._made, self._made + _RECORDS):
                value = {"account": f"a{number % 7}", "amount": number}
                producer.produce(f"journal-{self._name}", b"%d" % number, json.dumps(value).encode(), timestamp_ms=1)
            producer.flush()
        self._made += _RECORDS

    @property
    def is_counted(self) -> bool:
        """Whether every entry is in the newest sums."""
        newest = {account: n for account, n, _ in self.written()}
        return sum(newest.values()) == self._made

    def written(self) -> list[Update]:
        """Every result that a read_committed consumer sees."""
        values = [json.loads(record.value or b"") for record in read_all(self._log, f"sums-{self._name}")]
        return [(value["account"], value["n"], value["total"]) for value in values]

    def wanted(self) -> Counter[Update]:
        """What the micro-batches that markers name must have written, and how often: plain Python's sums."""
        entries = [json.loads(record.value or b"") for record in read_all(self._log, f"journal-{self._name}")]
        found, sums, begin = Counter[Update](), dict[str, tuple[int, int]](), 0
        for record in read_all(self._log, f"{self._name}-sums-epochs"):
            offsets = json.loads(EpochMarker.decode(record.value or b"").end_offsets[0] or "{}")
            end = offsets[f"journal-{self._name}"]["0"]
            for entry in entries[begin:end]:
                n, total = sums.get(entry["account"], (0, 0))
                sums[entry["account"]] = (n + 1, total + entry["amount"])
            found.update((account, *sums[account]) for account in {entry["account"] for entry in entries[begin:end]})
            begin = end
        return found
