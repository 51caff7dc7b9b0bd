/** Compares two answers about one key, of two times or of two isolation levels. Pure. */

/** The answer about windows or sessions. `along` is the time that orders its entries; the newest are asked for. */
export function sampleOf({ id, answer }, along) {
  return answer && { of: id, answer, along, entries: answer.body.entries, isCut: Boolean(answer.body.cursor) };
}

/** The answer about the newest value of a key. */
export function valueSample({ id, answer }) {
  if (!answer) return null;
  const { found, value, timestamp } = answer.body;
  return { of: id, answer, along: null, entries: found ? [{ value, timestamp }] : [], isCut: false };
}

/**
 * Return `{entry, before, after}` of each entry that differs. A missing entry is undefined. Entries beyond the limit of a cut answer
 * are unknown, and left out.
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

/** The text that identifies an entry of a key; constant for a single value. */
export function idOf({ start, end }) {
  return `${start}/${end}`;
}

function reaches({ entries, isCut, along }, entry) {
  return !isCut || entries.some((each) => each[along] < entry[along]);
}
