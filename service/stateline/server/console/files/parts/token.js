/** Asks for a token if the server wants one, and keeps it for this tab. */

import { html, useEffect, useRef, useState } from "../vendor/htm-preact-3.1.1.js";
import { ask, keepToken, whenTokenIsWanted } from "../base/api.js";
import { lookNow } from "../base/look.js";

/** Empty until the server wants a token. `onTaken` is called after a token was entered. */
export function Token({ onTaken }) {
  const [wanted, setWanted] = useState(false);
  const [said, setSaid] = useState("");
  const field = useRef(null);
  useEffect(() => whenTokenIsWanted(() => setWanted(true)), []);
  useEffect(() => wanted && field.current.focus(), [wanted]);
  if (!wanted) return null;
  const use = async (event) => {
    event.preventDefault();
    keepToken(field.current.value.trim());
    try {
      await ask("v1/console");
      setWanted(false);
      setSaid("");
      lookNow();
      onTaken();
    } catch (error) {
      keepToken("");
      setSaid(error.status === 401 ? "The server rejects this token." : error.message);
    }
  };
  return html`<section aria-labelledby="token-title" class="panel">
    <h2 id="token-title">Token</h2>
    <form onSubmit=${use}>
      <div class="field">
        <label for="token">The server wants a token</label>
        <input id="token" ref=${field} type="password" autocomplete="off" required aria-describedby="token-hint" />
        <span id="token-hint" class="hint">kept until this tab is closed</span>
      </div>
      <button type="submit" class="main">Use it</button>
      <p role="status">${said}</p>
    </form>
  </section>`;
}
