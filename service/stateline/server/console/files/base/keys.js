/** Keys of the keyboard that do something wherever one is. */

import { useEffect, useRef } from "../vendor/htm-preact-3.1.1.js";

/** Call `actions[key]` when that key is pressed; while somebody types only Escape is one. */
export function useKeys(actions) {
  const latest = useRef(actions);
  latest.current = actions;
  useEffect(() => {
    const pressed = (event) => {
      const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
      if (event.ctrlKey || event.metaKey || event.altKey || (typing && event.key !== "Escape")) return;
      const action = latest.current[event.key];
      if (action === undefined) return;
      event.preventDefault();
      action();
    };
    document.addEventListener("keydown", pressed);
    return () => document.removeEventListener("keydown", pressed);
  }, []);
}
