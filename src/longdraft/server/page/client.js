// Talks to this page's own server, and to nothing else.
import { NUMBERS } from "./form.js";
import { isObject, isText } from "./trace.js";

let apiKey = "";

export function useKey(key) {
  apiKey = key;
}

export class Problem extends Error {
  constructor(message, status = 0, param = null) {
    super(message);
    [this.status, this.param] = [status, param];
  }
}

async function ask(path, options = {}) {
  const headers = {
    ...(options.body ? { "Content-Type": "application/json" } : {}),
    ...(apiKey ? { Authorization: `Bearer ${apiKey}` } : {}),
  };
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store", credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The server does not answer.");
  }
  if (response.ok) return response;
  const error = (await response.json().catch(() => null))?.error;
  const message = isText(error?.message, 1000) ? error.message : `the server answers with status ${response.status}`;
  throw new Problem(message, response.status, isText(error?.param, 100) ? error.param : null);
}

export async function askMethods() {
  const answer = await (await ask("v1/longdraft/methods")).json().catch(() => null);
  const texts = (m) => isText(m.name, 64) && isText(m.label ?? "", 100) && isText(m.about ?? "");
  const good = (m) => isObject(m) && texts(m) && isObject(m.options ?? {});
  const range = (name) => isText(answer.parameters?.[name]?.allowed, 100);
  if (!isObject(answer) || !Array.isArray(answer.methods) || !answer.methods.length || !answer.methods.every(good))
    throw new Problem("The server’s list of methods cannot be read.");
  if (!Object.keys(NUMBERS).every(range)) throw new Problem("The server’s ranges of numbers cannot be read.");
  return answer;
}

// The objects of the run's stream. Throws Problem if it breaks off before its end.
export async function* events(body, signal) {
  const response = await ask("v1/longdraft/trace", { method: "POST", body: JSON.stringify(body), signal });
  const [reader, decoder] = [response.body.getReader(), new TextDecoder()];
  let rest = "";
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Problem("The connection to the server broke.");
    }
    if (part.done) throw new Problem("The server stopped in the middle of the run.");
    const lines = (rest + decoder.decode(part.value, { stream: true })).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") return;
      yield parsed(data);
    }
  }
}

function parsed(data) {
  let event;
  try {
    event = JSON.parse(data);
  } catch {
    throw new Problem("The server sent something that is not JSON.");
  }
  if (event?.error)
    throw new Problem(
      isText(event.error.message, 1000)
        ? `The server reports an error: ${event.error.message}`
        : "The server reports an error.",
    );
  return event;
}
