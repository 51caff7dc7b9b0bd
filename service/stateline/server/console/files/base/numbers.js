/** The numbers in values, for charts. They stay exact; only drawing rounds them. Pure. */

import { Decimal } from "./json.js";

const MOST_DEPTH = 3;
const MOST_NUMBERS = 200;

export function isNumeric(value) {
  return typeof value === "number" || typeof value === "bigint" || value instanceof Decimal;
}

/**
 * Return `{id, path}` of the numbers in these values, in their order. `path` has the names of the members, none for the value itself.
 * `id` is unique: the path with dots (`delay.total`), or `value`.
 */
export function numbersIn(values) {
  const paths = new Map(); // by the path as text: one member may be called "a.b", another one b in a
  for (const value of values) collect(value, [], paths);
  const taken = new Set();
  return [...paths.values()].map((path) => {
    let id = path.join(".") || "value";
    while (taken.has(id)) id = `value.${id}`;
    taken.add(id);
    return { id, path };
  });
}

function collect(value, path, paths) {
  if (paths.size === MOST_NUMBERS) return;
  if (isNumeric(value)) paths.set(JSON.stringify(path), path);
  if (isNumeric(value) || value === null || typeof value !== "object" || path.length === MOST_DEPTH) return;
  for (const [name, member] of Object.entries(value)) collect(member, [...path, name], paths);
}

/** The exact number that a value has there; null without one, and without a `number` of `numbersIn`. */
export function numberAt(value, number) {
  let found = number === undefined ? null : value;
  for (const name of number?.path ?? []) {
    if (found === null || typeof found !== "object" || !Object.hasOwn(found, name)) return null;
    found = found[name];
  }
  return isNumeric(found) ? found : null;
}

/** The exact least and greatest of some numbers. */
export function extentOf(numbers) {
  return numbers.reduce(([least, most], number) => [number < least ? number : least, number > most ? number : most], [numbers[0], numbers[0]]);
}
