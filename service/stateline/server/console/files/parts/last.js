/** The last questions of this tab. */

import { useEffect, useState } from "../vendor/htm-preact-3.1.1.js";

export const MOST_LAST = 20;

/** The questions kept under `name` until the tab closes, newest first; `question` is added to them unless it is null. */
export function useLast(name, question) {
  const [last, setLast] = useState(() => lastQuestions(name));
  const text = JSON.stringify(question);
  useEffect(() => {
    if (question === null) return;
    const next = [question, ...lastQuestions(name).filter((each) => JSON.stringify(each) !== text)].slice(0, MOST_LAST);
    sessionStorage.setItem(name, JSON.stringify(next));
    setLast(next);
  }, [text]);
  return last;
}

function lastQuestions(name) {
  return JSON.parse(sessionStorage.getItem(name) ?? "[]");
}
