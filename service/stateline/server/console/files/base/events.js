/** Server-Sent Events by `fetch`, because `EventSource` cannot send a token. */

/** The events of a body in order, `{id, event, data}`; `data` may be null. Ends with the body, throws its errors. */
export async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let made = { id: null, event: "message", data: null };
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines.map((each) => each.replace(/\r$/, ""))) {
        if (line !== "") take(made, line);
        else {
          if (made.id !== null || made.data !== null) yield made;
          made = { id: null, event: "message", data: null };
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // the body has ended, or its error was thrown already
  }
}

function take(made, line) {
  const [, name, value] = /^([^:]*):? ?(.*)$/.exec(line);
  if (name === "data") made.data = made.data === null ? value : `${made.data}\n${value}`;
  else if (name === "id" || name === "event") made[name] = value;
}
