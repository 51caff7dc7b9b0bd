"""Which masters a driver's URL names."""

from __future__ import annotations

from stateline.spark.drivers.master_watch import masters


def test_every_master_of_a_url_is_one_that_may_answer() -> None:
    assert masters("spark://one:7077") == [("one", 7077)]
    assert masters("spark://one:7077,127.0.0.1:7078,[::1]:7079") == [
        ("one", 7077), ("127.0.0.1", 7078), ("::1", 7079),
    ]  # fmt: skip
