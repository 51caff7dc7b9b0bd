"""Programs that tests of queries run in processes of their own: ``python -m store.query_processes`` in `tests`."""

import pickle
import sys
from itertools import count
from pathlib import Path
from random import Random

from stateline_store import Position, SecondaryReader, StoreContext, TopicPartition, queries
from store.query_oracles import KINDS, Put, materialized, random_puts, write

INPUT = TopicPartition("input", 0)


def commit_puts(number: int) -> list[Put]:
    """What commit `number`, from 1, puts: always the same, whoever asks. Each takes time two seconds further."""
    rnd = Random(number)
    return list(random_puts(rnd, rnd.randint(0, 12), first_ms=number * 2_000, last_ms=number * 2_000 + 2_000))


def write_forever(kind: str, task: Path) -> None:
    """Commit without a pause, until killed."""
    store = KINDS[kind](True)
    store.init(StoreContext("0_0", task))
    for number in count(1):
        for put in commit_puts(number):
            write(store, put)
        store.commit({}, position=Position.of({INPUT: number}))


def answer(store: Path, notice: Path, scratch: Path) -> None:
    """Answer pickled (query, schema) pairs from the standard input; (result, Position) pairs go out pickled."""
    reader = SecondaryReader(store, notice, scratch)
    answers = [queries.run(query, reader, schema) for query, schema in pickle.load(sys.stdin.buffer)]
    pickle.dump([(materialized(found.result), found.position) for found in answers], sys.stdout.buffer)
    reader.close()


if __name__ == "__main__":
    program, *arguments = sys.argv[1:]
    if program == "write":
        write_forever(arguments[0], Path(arguments[1]))
    else:
        answer(*map(Path, arguments))
