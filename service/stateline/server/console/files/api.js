/** Requests to the server that this page came from. Answers keep their text, because it is exact where JSON in JavaScript is not. */

import { parseExactly } from "./json.js";

const TOKEN = "stateline-token";
const PROXY_FAILURES = [502, 503, 504];

/** The server refused or failed: `status`, and the members of problem+json as `body`. */
export class Problem extends Error {
  constructor(status, body, headers) {
    super(body.detail ?? body.title ?? `The server answered with status ${status}.`);
    this.status = status;
    this.body = body;
    this.retryAfterMs = 1000 * (Number(headers.get("Retry-After")) || 0);
  }
}

/** No answer: no connection, no server behind the proxy, or not in time. */
export class Unreachable extends Error {}

let onUnauthenticated = () => {};

/** `listener` is called whenever the server wants a token, or another one. */
export function whenTokenIsWanted(listener) {
  onUnauthenticated = listener;
}

export function token() {
  return sessionStorage.getItem(TOKEN) ?? "";
}

/** Kept until the tab is closed, and nowhere else. */
export function keepToken(text) {
  if (text) sessionStorage.setItem(TOKEN, text);
  else sessionStorage.removeItem(TOKEN);
}

/** The address of a path of the API, also behind a proxy that serves this page below a path of its own. */
export function address(path) {
  return new URL(path, document.baseURI).href;
}

/**
 * One request. Returns `{status, text, body, headers, elapsedMs}` of an answer, which a 404 for an absent key is, too.
 * Throws `Problem`, or `Unreachable` when there is no answer within `timeoutMs`.
 */
export async function ask(path, { method = "GET", body = null, timeoutMs = 60_000 } = {}) {
  const headers = body === null ? {} : { "Content-Type": "application/json" };
  if (token()) headers.Authorization = `Bearer ${token()}`;
  const beganMs = performance.now();
  let response, text;
  try {
    response = await fetch(address(path), { method, body, headers, cache: "no-store", signal: AbortSignal.timeout(timeoutMs) });
    text = await response.text();
  } catch (error) {
    throw new Unreachable(error.name === "TimeoutError" ? `No answer within ${timeoutMs / 1000} s.` : "The server does not answer.");
  }
  return readAnswer(response, text, performance.now() - beganMs);
}

function readAnswer(response, text, elapsedMs) {
  const { status, headers } = response;
  const type = headers.get("Content-Type") ?? "";
  if (type.includes("problem+json")) {
    if (status === 401) onUnauthenticated();
    throw new Problem(status, parseExactly(text), headers);
  }
  if (PROXY_FAILURES.includes(status)) throw new Unreachable(`The server cannot be reached (status ${status}).`);
  if (!type.includes("json")) {
    if (!response.ok) throw new Problem(status, {}, headers);
    return { status, text, body: null, headers, elapsedMs };
  }
  return { status, text, body: parseExactly(text), headers, elapsedMs };
}
