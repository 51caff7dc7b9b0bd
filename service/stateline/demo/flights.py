"""The demo's application: the departures of one year from New York's three airports.

| store            | key                      | value                                                        |
|------------------|--------------------------|--------------------------------------------------------------|
| `aircraft`       | tail number              | its latest departure (timestamp: the scheduled time)         |
| `airport_totals` | origin                   | running totals, kept by a processor, with a changelog        |
| `delays`         | ``origin|carrier|hour``  | departures and delays of that hour, computed by Spark        |
| `weather`        | ``origin|hour``          | the weather then                                             |
| `planes`, `airlines`, `airports` | tail number, carrier, airport | what is known of them                |

Run it with `stateline demo`. Hours are UTC, written ``2013-07-04T14:00Z``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stateline import App, InputRecord, Output, StoreView, serdes, stores

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A second between two commits, so that one can see how far uncommitted state is ahead of committed state.
app = App("flights", config={"processing.guarantee": "exactly_once_v2", "commit.interval.ms": 1000})

# ---- Topics. A schema names what Spark reads of the values; there may be more in them.

departures = app.topic(
    "departures",
    key=serdes.string,
    value=serdes.json,
    schema="origin string, carrier string, dep_delay int",
)
airlines = app.topic("airlines", key=serdes.string, value=serdes.json, schema="carrier string, name string")

# ---- Tables: the newest value of every key of a topic.

app.table(departures, store="aircraft")
app.table(airlines)
app.table("weather", key=serdes.string, value=serdes.json)
app.table("planes", key=serdes.string, value=serdes.json)
app.table("airports", key=serdes.string, value=serdes.json)
app.table("delays", key=serdes.string, value=serdes.json)

# ---- Processors: record by record on the worker. Departures arrive by aircraft; totals need them by airport.

by_airport = app.repartition("by-airport", key=serdes.string, value=serdes.json, partitions=2)
airport_totals = app.store(stores.key_value("airport_totals", key=serdes.string, value=serdes.json))

NOTHING_YET: dict[str, Any] = {"departures": 0, "cancelled": 0, "delay_minutes": 0, "worst_delay": None}


@app.process(departures, forwards=[by_airport])
def send_to_airport(record: InputRecord, by_airport: Output) -> None:
    """Hand each departure on under its airport of origin."""
    by_airport.forward(record.value["origin"], record.value)


@app.process(by_airport, stores=[airport_totals])
def count_at_airport(record: InputRecord, airport_totals: StoreView) -> None:
    """Keep each airport's totals. A departure without a delay never left: it was cancelled."""
    totals = airport_totals.get(record.key) or NOTHING_YET
    delay = record.value["dep_delay"]
    worst = max((d for d in (totals["worst_delay"], delay) if d is not None), default=None)
    updated = {
        "departures": totals["departures"] + 1,
        "cancelled": totals["cancelled"] + (delay is None),
        "delay_minutes": totals["delay_minutes"] + (delay or 0),
        "worst_delay": worst,
    }
    airport_totals.put(record.key, updated)


# ---- Pipelines: relational work, on Spark.


@app.pipeline(
    reads=departures, static=[airlines], writes="delays", key=("origin", "carrier", "hour"), timestamp="_start"
)
def delays(departures: DataFrame, airlines: DataFrame) -> DataFrame:
    """Delays per airport, airline and hour of scheduled departure, with the airline's name.

    A departure's record carries its scheduled time. Each partition is in time order, but a micro-batch may take
    more of one than of another: the watermark leaves them 30 days, so that no departure is too late to count.
    """
    from pyspark.sql import functions as F  # noqa: N812  # PySpark's own convention; only its process loads it

    hourly = (
        departures.withWatermark("_timestamp", "30 days")
        .groupBy(F.window("_timestamp", "1 hour"), "origin", "carrier")
        .agg(
            F.count("*").alias("departures"),
            F.count_if(F.col("dep_delay").isNull()).alias("cancelled"),
            F.coalesce(F.sum("dep_delay"), F.lit(0)).alias("delay_minutes"),
            F.max("dep_delay").alias("worst_delay"),
        )
    )
    names = F.broadcast(airlines.select("carrier", F.col("name").alias("airline")))
    start = F.col("window.start")
    return hourly.join(names, "carrier", "left").select(
        "origin",
        "carrier",
        F.date_format(start, "yyyy-MM-dd'T'HH:mm'Z'").alias("hour"),
        "airline",
        "departures",
        "cancelled",
        "delay_minutes",
        "worst_delay",
        start.alias("_start"),
    )
