/** Keyboard shortcuts of all pages. */

import { useEffect, useRef } from "../vendor/htm-preact-3.1.1.js";

const TYPED_IN = "input:not([type=checkbox], [type=radio], [type=range]), textarea, select, [contenteditable]";

/** Call `actions[key]` when that key is pressed outside of a text field. */
export function useKeys(actions) {
  const latest = useRef(actions);
  latest.current = actions;
  useEffect(() => {
    const pressed = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.(TYPED_IN)) return;
      const action = latest.current[event.key];
      if (action === undefined) return;
      event.preventDefault();
      action();
    };
    document.addEventListener("keydown", pressed);
    return () => document.removeEventListener("keydown", pressed);
  }, []);
}
