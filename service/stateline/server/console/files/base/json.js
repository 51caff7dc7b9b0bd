/** JSON without loss: integers beyond 53 bits stay exact, and text is laid out without being parsed. */

/** The value of a JSON text; an integer that a number would round is a BigInt. */
export function parseExactly(text) {
  return JSON.parse(text, (_, value, context) =>
    typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source ?? "")
      ? BigInt(context.source)
      : value,
  );
}

/** A value that `parseExactly` made, as compact JSON. */
export function compact(value) {
  if (typeof value === "bigint") return value.toString();
  if (typeof value === "number" && !Number.isFinite(value)) return value > 0 ? "1e999" : "-1e999"; // as JSON can say it
  if (Object.is(value, -0)) return "-0";
  if (Array.isArray(value)) return `[${value.map(compact).join(", ")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const members = Object.entries(value).map(([name, member]) => `${JSON.stringify(name)}: ${compact(member)}`);
  return `{${members.join(", ")}}`;
}

/** As `compact`, but a text as it is, for a cell or a heading. */
export function shown(value) {
  return typeof value === "string" ? value : compact(value);
}

const PIECES = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g;

/** A sound JSON text with line breaks and indentation; numbers and strings exactly as they were. */
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

/**
 * The exact text of one member of each object in the arrays right below the top of a sound JSON text, in order: of
 * `entries`, say. A key of type JSON is looked up by its text, which a parsed value no longer has.
 */
export function memberTexts(text, name) {
  const wanted = JSON.stringify(name);
  const found = [];
  const open = [];
  let begin = -1;
  let last = "";
  for (const { 0: piece, index } of text.matchAll(PIECES)) {
    const atMember = open.join("") === "{[{";
    if (begin >= 0 && atMember && (piece === "," || piece === "}")) {
      found.push(text.slice(begin, index).trim());
      begin = -1;
    }
    if (piece === ":" && atMember && last === wanted) begin = index + 1;
    if (piece === "{" || piece === "[") open.push(piece);
    if (piece === "}" || piece === "]") open.pop();
    last = piece;
  }
  return found;
}
