"""The oracle against figures that are known of this data set, and against rows counted by hand."""

from __future__ import annotations

from stateline.demo import oracle


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
