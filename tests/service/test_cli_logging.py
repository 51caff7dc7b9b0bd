"""What the command line lets through of what librdkafka says."""

import logging

from stateline.cli_logging import REPEAT_AFTER_S, SaidOnce

FAILED = "FAIL [rdkafka#producer-%d] [thrd:a:1/bootstrap]: Connect to ipv4#127.0.0.1:1 failed (after %dms in state UP)"


def record(text: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("stateline.kafka", logging.ERROR, __file__, 1, text, arguments, None)


def test_the_same_message_is_said_once_a_minute_whatever_its_numbers() -> None:
    now = [1000.0]
    once = SaidOnce(lambda: now[0])
    assert once.filter(record(FAILED, 1, 0))
    assert not once.filter(record(FAILED, 2, 17))
    assert once.filter(record("Authentication failed"))
    now[0] += REPEAT_AFTER_S - 0.1
    assert not once.filter(record(FAILED, 1, 3))
    now[0] += 0.1
    assert once.filter(record(FAILED, 1, 3))


def test_endlessly_many_messages_do_not_fill_the_memory() -> None:
    once = SaidOnce(lambda: 0.0)
    for number in range(3000):
        once.filter(record(f"{'x' * number}"))
    assert len(once._said) <= 1000
