"""A mistake of a declaration ends with the application's file and line, and a clash names the earlier one besides."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from stateline.cli.loading import load_app
from stateline_store import CallerError

BEFORE = """\
from datetime import timedelta
from stateline import App, HoppingWindows, JoinWindows, SessionWindows, SlidingWindows, TumblingWindows, serdes, stores
MINUTE = timedelta(minutes=1)
app = App("shop")
orders = app.topic("orders", key=serdes.string, value=serdes.json)
stream = app.stream(orders)
products = app.table("products", key=serdes.string, value=serdes.json)
totals = app.store(stores.key_value("totals", key=serdes.string, value=serdes.int64))
numbers = app.table("numbers", key=serdes.int64, value=serdes.json)
def taking(*given): ...
@app.process(orders, stores=[totals], name="own")
def own(record, totals): ...
"""
FIRST = BEFORE.count("\n") + 1
# The wrong line → what is said of it, besides its place. `{before}`: the line of the first declaration.
MISTAKES: dict[str, str] = {
    # Functions
    "stream.filter('all')": "filter was given 'all' as its predicate: give a function",
    "stream.filter(None)": "filter was given None",
    "stream.map_values(lambda value: value)": "map_values calls its mapper with 2 arguments: key, value",
    "stream.peek(lambda k, v, *, loud: 1)": "peek calls its action with 2 arguments",
    "async def slow(k, v): ...\nstream.filter(slow)": "slow as its predicate, which is async",
    "def each(k, v):\n    yield k\nstream.map(each)": "each as its mapper, which has a yield in it",
    "class Two:\n    def __init__(self, only): ...\nstream.map(Two)": "map calls its mapper with 2 arguments",
    "class Has:\n    def one(self, k): ...\nstream.map(Has().one)": "map calls its mapper with 2 arguments",
    "stream.group_by_key().reduce(lambda a: a, 'sums')": "reduce calls its reducer with 2 arguments",
    "stream.group_by_key().aggregate(dict(), taking, 'a', value=serdes.json)": "aggregate was given {} as its initial",
    "@app.process(orders)\ndef two(record, totals): ...": "Processor 'two' calls its function with 1 argument: record",
    "app.process(orders)(5)": "Processor was given 5 as its function: give a function",
    "app.punctuate(every=MINUTE, on='stream_time', stores=[totals])(lambda: 1)": "has no name of its own: give one",
    "app.punctuate(every=MINUTE, on='stream_time', stores=[totals], name='p')(lambda: 1)": "Punctuation 'p' calls its",
    "stores.custom('mine', 5, key=serdes.string, value=serdes.json)": "Store 'mine' was given 5 as its factory",
    "app.topic('t', value=serdes.json, timestamp=lambda record: 1)": "Topic 't' calls its timestamp with 2",
    # Serdes
    "app.topic('t', key=str)": "<class 'str'> is no serde: use serdes.string",
    "app.topic('t', key='string')": "'string' is no serde",
    "app.topic('t', value=serdes.StringSerde)": "is no serde",
    "stream.map_values(taking, value=serdes.IntegerSerde)": "is no serde",
    "stores.key_value('s', key=serdes.windowed, value=serdes.json)": "is no serde",
    "stream.select_key(taking, key=int)": "<class 'int'> is no serde",
    "stores.timestamped_key_value('s', key=str, value=serdes.json)": "is no serde",
    "stores.window('s', key=str, value=serdes.json, size=MINUTE, retention=MINUTE)": "is no serde",
    "stores.session('s', key=str, value=serdes.json, retention=MINUTE)": "is no serde",
    "stores.versioned('s', key=str, value=serdes.json, history=MINUTE)": "is no serde",
    # Windows and times
    "TumblingWindows(timedelta(0))": "size=datetime.timedelta(0)",
    "TumblingWindows(-MINUTE)": "size=datetime.timedelta(days=-1",
    "TumblingWindows('1m')": "size='1m': a timedelta",
    "HoppingWindows(MINUTE, 2 * MINUTE)": "advance=0:02:00 is more than the size",
    "SlidingWindows(5)": "difference=5: a timedelta",
    "SessionWindows(MINUTE, grace=-MINUTE)": "grace=datetime.timedelta(days=-1",
    "stream.group_by_key().windowed_by(MINUTE)": "TumblingWindows, HoppingWindows",
    "stream.group_by_key().windowed_by(TumblingWindows(MINUTE)).count('c', retention=MINUTE / 2)": "need at least",
    "stream.group_by_key().windowed_by(SessionWindows(MINUTE)).aggregate(dict, taking, value=serdes.json)": "Sessions "
    "need `merger=f(key, one, other)`: a late row can connect two sessions",
    "stream.group_by_key().windowed_by(TumblingWindows(MINUTE)).aggregate(dict, taking, value=serdes.json, "
    "merger=taking)": "Only sessions take `merger=`.",
    "app.ktable(products).suppress(5)": "suppress(5): this table has no windows. Only until_time_limit(…) is",
    "stores.window('w', key=serdes.string, value=serdes.json, size=60, retention=MINUTE)": "size=60: give a timedelta",
    "stores.window('w', key=serdes.string, value=serdes.json, size=2 * MINUTE, retention=MINUTE)": "at least as long",
    "app.table('t', versioned='1h')": "versioned='1h': give a timedelta",
    "app.table('t', windowed=MINUTE)": "retention=None: a table of windows or sessions needs it",
    "app.punctuate(every=10, on='stream_time', stores=[totals])": "every=10 is no interval",
    # Joins
    "stream.select_key(taking).join(products, taking)": "Before join the key was changed",
    "stream.select_key(taking).group_by_key()": "Before group_by_key the key was changed",
    "stream.join(products, taking, within=JoinWindows(MINUTE))": "leave out within=… to join a table",
    "stream.join(products, taking, on=taking)": "join: on=… is only for global tables. Use .select_key(…).repartition(",
    "stream.left_join(app.global_table('all'), taking)": "left_join with a global table: give on=…",
    "stream.join(numbers, taking)": "keys of type string, and 'numbers' of type int64",
    "app.ktable(products).join(app.ktable(numbers), taking, 'both')": "Table 'products' has keys of type string",
    "stream.merge(app.stream(app.topic('other', key=serdes.int64)))": "cannot be merged",
    # Names of steps
    "stream.named('first')": "no step comes before it",
    "stream.peek(taking).named('a step')": "'a step' cannot be used as step name",
    "stream.peek(taking).named('own')": "Processor 'own' is declared in",
    "stream.peek(taking).named('one').named('two')": "the step is named 'one' already",
    "stream.peek(taking).named('x'); stream.peek(taking).named('x')": "The step name 'x' is used in {file}, line "
    "{first} already",
    "stream.peek(taking).named('x'); app.process(orders, name='x')(taking)": "The step name 'x' is used in {file}",
    "stream.join(stream, taking)": "within=None: a join of two streams needs within=",
    "app.ktable(products).filter(5)": "filter was given 5 as its predicate",
    "stream.group_by_key().windowed_by(TumblingWindows(MINUTE)).reduce(5, 'r')": "reduce was given 5 as its reducer",
    "stream.group_by_key().windowed_by(TumblingWindows(MINUTE)).count('c').suppress(5)": "suppress(5)",
    # Names
    "app.topic('orders', key=serdes.int64, value=serdes.json)": "'orders' is declared in {file}, line 5, already, with "
    "other key",
    "app.stream('orders', value=serdes.string)": "'orders' is declared in {file}, line 5, already, with key string",
    "app.store(stores.key_value('totals', key=serdes.string, value=serdes.json))": "Store 'totals' is declared in "
    "{file}, line 8, already",
    "stream.group_by_key().count('products')": "declared in {file}, line 7, already, as a table of topic 'products'",
    "app.store(stores.key_value('Totals', key=serdes.string, value=serdes.json))": "line 8, already, and 'Totals' "
    "differs from that in the case of letters alone",
    "app.global_table('totals')": "Store 'totals' is declared in {file}, line 8, already",
    "app.process(orders, name='own')(taking)": "Processor 'own' is declared in {file}, line 11, already",
    "app.punctuate(every=MINUTE, on='stream_time', stores=[totals], name='own')(taking)": "Processor 'own' is declared",
    "stream.repartition('again'); stream.repartition('again')": "'shop-again-repartition' in {file}, line {first}. ",
    "app.repartition('x', key=serdes.int64, value=serdes.json); stream.repartition('x')": "with other key",
    "app.pipeline(reads='a', writes='b', key='k', name='p')(taking); "
    "app.pipeline(reads='a', writes='c', key='k', name='p')(taking)": "'p' is declared in {file}, line {first}, al",
    "app.pipeline(reads='a', writes='b', key='k', name='p')(taking); "
    "app.pipeline(reads='a', writes='b', key='k', name='q')(taking)": "'p' ({file}, line {first}) and 'q' both write",
    "stream.to('b'); app.pipeline(reads='a', writes='b', key='k', name='p')(taking)": "`to` ({file}, line {first})",
    "App('no/slash')": "'no/slash' cannot be used as application name",
    "app.topic(5)": "5 cannot be used as topic name",
    "stores.key_value('rocksdb', key=serdes.string, value=serdes.json)": "'rocksdb' cannot be used as store name",
    # Settings, and what else is given as it should not be
    "App('shop', config={'commit.intervall.ms': 5})": "Did you mean commit.interval.ms?",
    "App('shop', config=['commit.interval.ms'])": "give a dict of settings",
    "stream.repartition('x', partitions='3')": "partitions='3': a whole number of 1 or more",
    "app.repartition('x', key=serdes.string, value=serdes.json, partitions=0)": "partitions=0",
    "app.process(orders, stores=totals)(taking)": "Processor 'taking' was given stores=",
    "app.store('totals')": "app.store was given 'totals'",
    "app.topic('t', value=serdes.json, on_invalid_timestamp='never')": "use one of fail, skip, partition_time",
    "app.pipeline(reads='a', writes='b', key='k', windowing='hour')": "windowing='hour'",
    "app.pipeline(reads='a', writes='b', key='k', output_mode='all', name='p')(taking)": "use one of append, update",
}
Loaded = Callable[[str], str]


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loaded:
    """What is said of an application with these lines at its end; ``{file}`` is its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    name = f"module_{uuid4().hex}"

    def refused(lines: str) -> str:
        (tmp_path / f"{name}.py").write_text(f"{BEFORE}{lines}\n")
        with pytest.raises(CallerError) as caught:  # not by `load_app`, which finds a place for any error
            importlib.import_module(name)
        sys.modules.pop(name, None)
        return str(caught.value).replace(f"{name}.py", "{file}")

    return refused


@pytest.mark.parametrize("wrong", MISTAKES)
def test_a_wrong_line_is_told_with_its_file_and_number(wrong: str, refused: Loaded) -> None:
    message = refused(wrong)
    lines = wrong.split("\n")
    declaring = next(n for n, line in enumerate(lines) if not line.startswith(("async", "def", "class", " ")))
    assert MISTAKES[wrong].replace("{first}", str(FIRST)) in message
    assert message.endswith(f" ({{file}}, line {FIRST + declaring})")


def test_a_call_over_several_lines_is_told_by_the_line_of_its_method(refused: Loaded) -> None:
    message = refused("(\n    stream.filter(taking)\n    .map(taking)\n    .to_table('t')\n)")
    assert message.endswith(f" ({{file}}, line {FIRST + 3})")


def test_a_mistake_that_shows_at_the_end_has_the_line_of_what_it_is_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"module_{uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(
        f"{BEFORE}alone = app.store(stores.key_value('alone', key=serdes.string, value=serdes.json))\n"
    )
    with pytest.raises(CallerError) as caught:
        load_app(name).topology()
    assert str(caught.value) == (
        f"No processor uses the store 'alone': name it in `stores=[…]` of one, or remove it ({name}.py, line {FIRST})"
    )


def test_a_function_that_was_declared_is_the_applications_own(tmp_path: Path) -> None:
    from stateline import App

    app = App("shop")

    def own(record: object) -> None: ...

    assert app.process("orders")(own) is own
