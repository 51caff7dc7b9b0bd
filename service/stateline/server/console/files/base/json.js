/** JSON without loss: numbers that JavaScript would round stay exact, and text is laid out without being parsed. */

const DIGITS_KEPT = 15; // that every double keeps

/** A number with a fraction or exponent that a double would round: its text, and the nearest double for charts and sorting. */
export class Decimal {
  #text; // private, because it is a leaf of a value

  constructor(text) {
    this.#text = text;
  }

  toString() {
    return this.#text;
  }

  valueOf() {
    return Number(this.#text);
  }
}

/** The value of JSON text. A number that a double would round is a BigInt or a `Decimal`. */
export function parseExactly(text) {
  return JSON.parse(text, (_, value, context) => (typeof value === "number" && mayBeRounded(value, context?.source ?? "") ? exact(value, context.source) : value));
}

function mayBeRounded(value, text) {
  return text.length > DIGITS_KEPT || (text.length > 1 && (value === 0 || !Number.isFinite(value)));
}

function exact(value, text) {
  if (value !== 0 && /^-?\d+$/.test(text)) return Number.isSafeInteger(value) ? value : BigInt(text);
  return digitsOf(text) === digitsOf(String(value)) ? value : new Decimal(text);
}

/** The same text for all spellings of a number. */
function digitsOf(text) {
  const [, sign, whole, fraction = "", exponent = "0"] = /^(-?)(\d+)(?:\.(\d+))?(?:e([+-]?\d+))?$/i.exec(text) ?? [];
  if (whole === undefined) return text; // Infinity
  const digits = (whole + fraction).replace(/^0+/, "");
  const kept = digits.replace(/0+$/, "");
  if (kept === "") return `${sign}0`;
  return `${sign}${kept}e${Number(exponent) - fraction.length + digits.length - kept.length}`;
}

/** A value of `parseExactly` as compact JSON. */
export function compact(value) {
  if (typeof value === "bigint" || value instanceof Decimal) return value.toString();
  if (Array.isArray(value)) return `[${value.map(compact).join(", ")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const members = Object.entries(value).map(([name, member]) => `${JSON.stringify(name)}: ${compact(member)}`);
  return `{${members.join(", ")}}`;
}

/** `compact`, but text without quotes, for a cell or a heading. */
export function shown(value) {
  return typeof value === "string" ? value : compact(value);
}

const PIECES = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g;

/** Valid JSON text with line breaks and indentation. Numbers and strings stay exact. */
export function indented(text) {
  let depth = 0;
  let result = "";
  let last = "";
  for (const [piece] of text.matchAll(PIECES)) {
    const closes = piece === "}" || piece === "]";
    if (closes) depth -= 1;
    const opened = last === "{" || last === "[";
    if (closes ? !opened : opened || last === ",") result += `\n${"  ".repeat(depth)}`;
    result += piece === ":" ? ": " : piece;
    if (piece === "{" || piece === "[") depth += 1;
    last = piece;
  }
  return result;
}

/** The key of an entry as a URL has it; null without a key. */
export function keyOf({ key, key_text: text }) {
  return key === undefined ? null : (text ?? shown(key));
}
