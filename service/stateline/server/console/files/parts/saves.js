/** Buttons that save files, with their progress. */

import { html, useEffect, useRef, useState } from "../vendor/htm-preact-3.1.1.js";
import { open, Problem, Unreachable } from "../base/api.js";
import { Failure } from "./problem.js";

/** `files` are pairs of a button's label and an asynchronous function, which gets an `AbortSignal` and `say(text)`. It returns what it has saved, in words. */
export function Saves({ files }) {
  const [seen, setSeen] = useState({ said: "", failure: null });
  const reading = useRef(null);
  useEffect(() => () => reading.current?.abort(), []);
  const run = async (make) => {
    reading.current?.abort();
    const over = new AbortController();
    reading.current = over;
    const say = (said) => setSeen({ said, failure: null, running: true });
    say("Reading …");
    try {
      setSeen({ said: await make(over.signal, say), failure: null });
    } catch (error) {
      if (over.signal.aborted) setSeen({ said: "Stopped. Nothing was saved.", failure: null });
      else if (error instanceof Problem || error instanceof Unreachable) setSeen({ said: "", failure: error });
      else throw error;
    }
  };
  return html`<div class="buttons">
    ${files.map(([label, make]) => html`<button key=${label} type="button" onClick=${() => run(make)}>${label}</button>`)}
    ${seen.running && html`<button type="button" onClick=${() => reading.current.abort()}>Stop</button>`}
    <span role="status">${seen.said}</span>
  </div>
  ${seen.failure && html`<${Failure} error=${seen.failure} />`}`;
}

/** Save the Arrow stream that answers this request. Throws as `open`, and `Unreachable` if the stream breaks off. */
export async function saveArrow(request, name, signal) {
  const response = await open(request.path, { ...request, accept: "application/vnd.apache.arrow.stream", signal });
  try {
    save(await response.blob(), `${name}.arrows`);
  } catch (error) {
    signal.throwIfAborted();
    if (!(error instanceof TypeError)) throw error;
    throw new Unreachable("The stream broke off: ask again.");
  }
  return `Saved as ${name}.arrows.`;
}

export function save(blob, name) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000); // browsers read it after the click
}
