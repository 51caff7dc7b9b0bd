"""The demo's application: the departures of one year from New York's three airports.

| store            | kind      | key                     | value                                                      |
|------------------|-----------|-------------------------|------------------------------------------------------------|
| `aircraft`       | key-value | tail number             | its latest departure (timestamp: the scheduled time)       |
| `airport_totals` | key-value | origin                  | running totals, kept by a processor, with a changelog      |
| `delays`         | key-value | ``origin|carrier|hour`` | departures and delays of that hour, by Spark               |
| `delay_windows`  | window    | origin                  | delays of departure and of arrival, per hour, by Spark     |
| `aircraft_days`  | session   | tail number             | legs and minutes until a rest, since October, by Spark     |
| `weather_as_of`  | versioned | origin                  | the weather at each time                                   |
| `weather`        | key-value | ``origin|hour``         | the weather then                                           |
| `planes`, `airlines`, `airports` | key-value | tail number, carrier, airport | what is known of them        |

Run it with `make demo`. Hours are UTC, written ``2013-07-04T14:00Z``.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from stateline import App, InputRecord, Output, StoreView, serdes, stores
from stateline.model.pipeline import Windowing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A second between two commits, so that one can see how far uncommitted state is ahead of committed state.
app = App(
    "flights",
    config={"processing.guarantee": "exactly_once_v2", "commit.interval.ms": 1000},
    examples={
        "aircraft": "N14228",
        "airport_totals": "JFK",
        "delays": "JFK|B6|2013-01-01T11:00Z",
        "delay_windows": "JFK",
        "aircraft_days": "N14228",
        "weather_as_of": "JFK",
        "weather": "JFK|2013-01-01T11:00Z",
        "planes": "N14228",
        "airlines": "B6",
        "airports": "JFK",
    },
)

KEPT = timedelta(days=400)  # the whole year, and some
LATE = timedelta(days=30)  # see `delays`
REST = timedelta(hours=6)  # what ends an aircraft's day
HOUR_MS = 3_600_000
OFTEN_ENOUGH_MS = 2_000  # between two micro-batches; `delays` takes what is configured, half a second

# ---- Topics. A schema names what Spark reads of the values; there may be more in them.

departures = app.topic(
    "departures",
    key=serdes.string,
    value=serdes.json,
    schema="tailnum string, origin string, carrier string, dep_delay int, arr_delay int, air_time int",
)
airlines = app.topic("airlines", key=serdes.string, value=serdes.json, schema="carrier string, name string")
weather = app.topic("weather", key=serdes.string, value=serdes.json)

# ---- Tables: the newest value of every key of a topic, or of every window or session of it.

app.table(departures, store="aircraft")
app.table(airlines)
app.table(weather)
app.table("planes", key=serdes.string, value=serdes.json)
app.table("airports", key=serdes.string, value=serdes.json)
app.table("delays", key=serdes.string, value=serdes.json)
app.table("delay_windows", key=serdes.string, value=serdes.json, windowed=timedelta(hours=1), retention=KEPT)
app.table("aircraft_days", key=serdes.string, value=serdes.json, sessions=True, retention=KEPT)

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


# Of the weather every hour is a key of its own. Under the airport's key each hour is a version: what was valid when?

weather_by_airport = app.repartition("weather-by-airport", key=serdes.string, value=serdes.json, partitions=1)
app.table(weather_by_airport, store="weather_as_of", versioned=KEPT)


@app.process(weather, forwards=[weather_by_airport])
def send_weather_to_airport(record: InputRecord, weather_by_airport: Output) -> None:
    """Hand each hour's weather on under its airport, with the time of the hour."""
    weather_by_airport.forward(record.value["origin"], record.value)


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

    hourly = _on_time(departures).groupBy(F.window("_timestamp", "1 hour"), "origin", "carrier")
    counted = hourly.agg(
        F.count("*").alias("departures"),
        F.count_if(F.col("dep_delay").isNull()).alias("cancelled"),
        F.coalesce(F.sum("dep_delay"), F.lit(0)).alias("delay_minutes"),
        F.max("dep_delay").alias("worst_delay"),
    )
    names = F.broadcast(airlines.select("carrier", F.col("name").alias("airline")))
    start = F.col("window.start")
    return counted.join(names, "carrier", "left").select(
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


@app.pipeline(
    reads=departures,
    writes="delay_windows",
    key="origin",
    windowing=Windowing("window", "_window", HOUR_MS),
    timestamp="_start",
    trigger_ms=OFTEN_ENOUGH_MS,
)
def delay_windows(departures: DataFrame) -> DataFrame:
    """Delays of an airport's departures, when they left and when they arrived, in windows of an hour."""
    from pyspark.sql import functions as F  # noqa: N812  # as above

    hourly = _on_time(departures).groupBy(F.window("_timestamp", "1 hour"), "origin")
    counted = hourly.agg(
        F.count("*").alias("departures"),
        F.count("dep_delay").alias("left"),
        F.coalesce(F.sum("dep_delay"), F.lit(0)).alias("departure_delay_minutes"),
        F.count("arr_delay").alias("arrived"),
        F.coalesce(F.sum("arr_delay"), F.lit(0)).alias("arrival_delay_minutes"),
    )
    return counted.withColumnRenamed("window", "_window").withColumn("_start", F.col("_window.start"))


@app.pipeline(
    reads=departures,
    writes="aircraft_days",
    key="tailnum",
    windowing=Windowing("session", "_session", REST // timedelta(milliseconds=1)),
    timestamp="_timestamp",
    trigger_ms=OFTEN_ENOUGH_MS,
)
def aircraft_days(departures: DataFrame) -> DataFrame:
    """What each aircraft flew until it rested: departures at most six hours apart. A day is seen growing.

    Since October: what keeps such sessions is Python, and the demo is to be quick.
    """
    from stateline.spark import session_aggregate

    flown = departures.where("tailnum IS NOT NULL AND dep_delay IS NOT NULL AND _timestamp >= '2013-10-01'")
    days = session_aggregate(
        flown.select("tailnum", "air_time", "_timestamp"),
        "tailnum",
        gap=REST,
        delay=LATE,
        initial={"legs": 0, "minutes": 0},
        add=lambda day, leg: {"legs": day["legs"] + 1, "minutes": day["minutes"] + (leg["air_time"] or 0)},
        merge=lambda one, other: {name: one[name] + other[name] for name in one},
        schema="legs int, minutes int",
    )
    return days.withColumnRenamed("session", "_session")


def _on_time(departures: DataFrame) -> DataFrame:
    return departures.withWatermark("_timestamp", f"{LATE.days} days")
