"""From how many rows on a write holds readers up, as writes took so far."""

from stateline.worker.write_stall import MOST_S, WriteStall


def first_long(stall: WriteStall) -> int:
    """The fewest rows of which the write is long, to within a percent."""
    rows = 1
    while not stall.is_long(rows):
        rows += max(1, rows // 100)
    return rows


def test_it_comes_to_what_writes_take() -> None:
    stall = WriteStall()
    for _ in range(50):
        stall.learn(1_000, 1_000 * 5e-6)
    assert 0.9 * MOST_S / 5e-6 < first_long(stall) < 1.1 * MOST_S / 5e-6


def test_a_pause_in_the_middle_of_a_write_halves_it_at_most_and_is_forgotten() -> None:
    stall, paused = WriteStall(), WriteStall()
    paused.learn(1_000, 30.0)
    assert first_long(paused) >= 0.49 * first_long(stall)
    for each in (stall, paused):
        for _ in range(30):
            each.learn(1_000, 1_000 * 1e-6)
    assert abs(first_long(paused) - first_long(stall)) < 0.03 * first_long(stall)


def test_a_write_of_few_rows_tells_nothing() -> None:
    stall = WriteStall()
    before = first_long(stall)
    stall.learn(1, 1.0)
    assert first_long(stall) == before


def test_a_write_of_few_rows_is_never_made_sooner_so_that_what_is_learned_is_forgotten() -> None:
    stall = WriteStall()
    for _ in range(50):
        stall.learn(100, 1.0)
    assert first_long(stall) >= 100
    for _ in range(50):
        stall.learn(100, 100e-6)
    assert first_long(stall) > 2_500
