/** What differs between two answers about one key: asked one after the other, or at two isolation levels. Pure. */

/** The answer of a question for windows or sessions: `along` is the time by which its entries are ordered, the newest being asked for. */
export function sampleOf({ id, answer }, along) {
  return answer && { of: id, answer, along, entries: answer.body.entries, isCut: Boolean(answer.body.cursor) };
}

/** The same of a question for the newest value of a key. */
export function valueSample({ id, answer }) {
  if (!answer) return null;
  const { found, value, timestamp } = answer.body;
  return { of: id, answer, along: null, entries: found ? [{ value, timestamp }] : [], isCut: false };
}

/**
 * `{entry, before, after}` of each entry that is another one in the second answer; what is not there is undefined. One that an
 * answer does not reach, as it is cut at its limit, may be there: nothing is said of it.
 */
export function differencesOf(before, after, isSame) {
  const [old, young] = [before, after].map(({ entries }) => new Map(entries.map((entry) => [idOf(entry), entry])));
  const ids = [...new Set([...young.keys(), ...old.keys()])];
  const all = ids.map((id) => ({ entry: young.get(id) ?? old.get(id), before: old.get(id), after: young.get(id) }));
  return all.filter((each) => {
    if (each.before === undefined) return reaches(before, each.entry);
    if (each.after === undefined) return reaches(after, each.entry);
    return !isSame(each.before, each.after);
  });
}

/** What tells one entry of a key from another; of one value it is the same always. */
export function idOf({ start, end }) {
  return `${start}/${end}`;
}

function reaches({ entries, isCut, along }, entry) {
  return !isCut || entries.some((each) => each[along] < entry[along]);
}
