/** Requests to this page's server. Answers keep their text, because JSON in JavaScript is not exact. */

import { parseExactly } from "./json.js";

const TOKEN = "stateline-token";
const PROXY_FAILURES = [502, 503, 504];

/** The server's refusal or failure: `status`, and the members of problem+json as `body`. */
export class Problem extends Error {
  constructor(status, body, headers) {
    super(body.detail ?? body.title ?? `The server answered with status ${status}.`);
    this.status = status;
    this.body = body;
    this.retryAfterMs = 1000 * (Number(headers.get("Retry-After")) || 0);
  }
}

/** No answer: no connection, no server behind the proxy, or a timeout. */
export class Unreachable extends Error {}

let onUnauthenticated = () => {};

/** Call `listener` whenever the server wants a token, or another one. */
export function whenTokenIsWanted(listener) {
  onUnauthenticated = listener;
}

export function token() {
  return sessionStorage.getItem(TOKEN) ?? "";
}

/** Kept only until the tab closes. */
export function keepToken(text) {
  if (text) sessionStorage.setItem(TOKEN, text);
  else sessionStorage.removeItem(TOKEN);
}

/** The URL of an API path, also behind a proxy that serves this page below a path. */
export function address(path) {
  return new URL(path, document.baseURI).href;
}

/**
 * Send one request. Returns `{status, text, body, headers, elapsedMs}`, also for a 404 of an absent key. Throws `Problem`, or
 * `Unreachable` without an answer within `timeoutMs`. If `signal` is aborted, throws its reason.
 */
export async function ask(path, { method = "GET", body = null, timeoutMs = 60_000, signal = null } = {}) {
  const beganMs = performance.now();
  const late = AbortSignal.timeout(timeoutMs);
  let response, text;
  try {
    response = await send(path, { method, body, signal: signal === null ? late : AbortSignal.any([signal, late]) });
    text = await response.text();
  } catch (error) {
    signal?.throwIfAborted();
    throw new Unreachable(error.name === "TimeoutError" ? `No answer within ${timeoutMs / 1000} s.` : "The server does not answer.");
  }
  return readAnswer(response, text, performance.now() - beganMs);
}

/**
 * Return the `Response` with status 200 while its body arrives, for streams and downloads. Throws like `ask`. It has no timeout, so
 * give a `signal`.
 */
export async function open(path, { method = "GET", body = null, accept, signal = null, headers = {} }) {
  let response;
  try {
    response = await send(path, { method, body, signal, headers: { Accept: accept, ...headers } });
    if (!response.ok) readAnswer(response, await response.text(), 0);
  } catch (error) {
    signal?.throwIfAborted();
    if (error instanceof Problem || error instanceof Unreachable) throw error;
    throw new Unreachable("The server does not answer.");
  }
  return response;
}

function send(path, { method, body, signal, headers = {} }) {
  const all = { ...headers, ...(body === null ? {} : { "Content-Type": "application/json" }) };
  if (token()) all.Authorization = `Bearer ${token()}`;
  return fetch(address(path), { method, body, headers: all, cache: "no-store", signal });
}

function readAnswer(response, text, elapsedMs) {
  const { status, headers } = response;
  const type = headers.get("Content-Type") ?? "";
  if (type.includes("problem+json")) {
    if (status === 401) onUnauthenticated();
    throw new Problem(status, parsed(text), headers);
  }
  if (PROXY_FAILURES.includes(status)) throw new Unreachable(`The server cannot be reached (status ${status}).`);
  if (!type.includes("json")) {
    if (!response.ok) throw new Problem(status, {}, headers);
    return { status, text, body: null, headers, elapsedMs };
  }
  return { status, text, body: parsed(text), headers, elapsedMs };
}

function parsed(text) {
  try {
    return parseExactly(text);
  } catch {
    throw new Unreachable("The answer cannot be read: it was cut off, or it comes from a proxy.");
  }
}
