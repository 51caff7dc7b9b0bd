"""The oracle against figures that are known of this data set, and against rows counted by hand."""

from __future__ import annotations

from datetime import UTC, datetime

from flights import oracle, oracle_times
from flights.oracle_times import Flight, Version

HOUR_MS = 3_600_000
OCTOBER_MS = int(datetime(2013, 10, 1, tzinfo=UTC).timestamp()) * 1000


def _flight(hour: float, *, tail: str | None = "N1", delay: float | None = 10, air: float | None = 60) -> Flight:
    return Flight(OCTOBER_MS + int(hour * HOUR_MS), tail, "JFK", "B6", delay, delay, air)


def test_totals_per_airport_are_the_known_figures(whole_year: oracle.Answers) -> None:
    totals = whole_year.airport_totals
    assert {key: value["departures"] for key, value in totals.items()} == {
        "EWR": 120_835,
        "JFK": 111_279,
        "LGA": 104_662,
    }
    assert sum(value["cancelled"] for value in totals.values()) == 8_255
    assert totals["JFK"]["worst_delay"] == 1_301  # HA 51 to Honolulu on 9 January


def test_every_aircraft_and_every_hour_of_an_airline_has_an_answer(whole_year: oracle.Answers) -> None:
    assert len(whole_year.aircraft) == 4_044  # 4,043 tail numbers, and "unknown"
    assert len(whole_year.delays) == 116_904
    assert sum(value["departures"] for value in whole_year.delays.values()) == 336_776


def test_the_first_hour_is_as_counted_by_hand() -> None:
    answers = oracle.expected(6)
    # 5:15 UA EWR +2, 5:29 UA LGA +4, 5:40 AA JFK +2, 5:45 B6 JFK -1, 5:58 UA EWR -4, 5:59 B6 JFK 0
    united = answers.delays["EWR|UA|2013-01-01T10:00Z"]
    assert united == {
        "origin": "EWR",
        "carrier": "UA",
        "hour": "2013-01-01T10:00Z",
        "airline": "United Air Lines Inc.",
        "departures": 2,
        "cancelled": 0,
        "delay_minutes": -2,
        "worst_delay": 2,
    }
    assert answers.airport_totals["JFK"] == {
        "departures": 3,
        "cancelled": 0,
        "delay_minutes": 1,
        "worst_delay": 2,
    }
    assert answers.aircraft["N14228"]["scheduled"] == "2013-01-01T10:15:00Z"


def test_a_prefix_of_the_departures_knows_nothing_of_the_rest() -> None:
    answers = oracle.expected(1)
    assert list(answers.aircraft) == ["N14228"]
    assert list(answers.airport_totals) == ["EWR"]
    assert oracle.expected(0) == oracle.Answers()


def test_windows_count_every_departure_of_the_year_once(whole_year: oracle.Answers) -> None:
    windows = whole_year.delay_windows
    assert sum(window["departures"] for window in windows.values()) == 336_776
    assert sum(window["left"] for window in windows.values()) == 336_776 - 8_255
    assert sum(window["arrived"] for window in windows.values()) == 327_346  # others were diverted
    assert all(start % HOUR_MS == 0 for _, start in windows)


def test_a_window_is_an_hour_and_a_flight_without_a_delay_counts_as_a_departure_alone() -> None:
    windows = oracle_times.delay_windows([_flight(0), _flight(0.99, delay=-4), _flight(1), _flight(1.5, delay=None)])
    one = {"origin": "JFK", "departures": 2, "left": 2, "departure_delay_minutes": 6}
    other = {"origin": "JFK", "departures": 2, "left": 1, "departure_delay_minutes": 10}
    assert windows == {
        ("JFK", OCTOBER_MS): {**one, "arrived": 2, "arrival_delay_minutes": 6},
        ("JFK", OCTOBER_MS + HOUR_MS): {**other, "arrived": 1, "arrival_delay_minutes": 10},
    }


def test_a_day_goes_on_over_six_hours_and_ends_with_a_longer_rest() -> None:
    flights = [_flight(12), _flight(0), _flight(6, air=None), _flight(18.01)]
    assert oracle_times.aircraft_days(flights) == {
        ("N1", OCTOBER_MS, OCTOBER_MS + 12 * HOUR_MS): {"tailnum": "N1", "legs": 3, "minutes": 120},
        ("N1", OCTOBER_MS + 64_836_000, OCTOBER_MS + 64_836_000): {"tailnum": "N1", "legs": 1, "minutes": 60},
    }


def test_cancelled_flights_unknown_aircraft_and_days_before_october_are_no_legs() -> None:
    flights = [_flight(0, delay=None), _flight(1, tail=None), _flight(-1)]
    assert oracle_times.aircraft_days(flights) == {}


def test_a_version_is_valid_until_the_next_of_its_key() -> None:
    versions = oracle_times.versions([("JFK", 7, {"n": 2}), ("JFK", 3, {"n": 1}), ("LGA", 5, {"n": 3})])
    assert versions == {
        "JFK": [Version({"n": 1}, 3, 7), Version({"n": 2}, 7, None)],
        "LGA": [Version({"n": 3}, 5, None)],
    }


def test_every_hour_of_weather_is_a_version_of_its_airport() -> None:
    weather = oracle.expected_weather()
    assert {origin: len(versions) for origin, versions in weather.items()} == {"EWR": 8_703, "JFK": 8_706, "LGA": 8_706}


def test_the_ranking_leaves_out_who_flies_seldom_and_breaks_ties_by_name() -> None:
    many = [_flight(0, delay=5)] * 100
    same = [each._replace(carrier="AA", departure_delay=delay) for each, delay in zip(many, [4, 6] * 50, strict=True)]
    seldom = [each._replace(origin="LGA", departure_delay=500) for each in many[1:]]
    rows = oracle_times.ranking([*many, *same, *seldom], {"AA": "American"}, {"JFK": "Kennedy"})
    assert [(row["carrier"], row["flights"], row["minutes"], row["mean"]) for row in rows] == [
        ("AA", 100, 500, 5.0),
        ("B6", 100, 500, 5.0),
    ]
    assert (rows[0]["airline"], rows[0]["airport_name"], rows[1]["airline"]) == ("American", "Kennedy", None)
