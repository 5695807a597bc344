// The methods of this page's server, asked for with the key that the form has.
import { Problem, askMethods, useKey } from "./client.js";
import { $ } from "./dom.js";
import { fillMethods, showProblem } from "./form.js";

export async function connect() {
  const key = $("key").value.trim();
  useKey(key);
  try {
    if (key && /[^\x21-\x7e]/.test(key)) throw new Problem("An API key has no spaces and no letters beyond ASCII.");
    fillMethods(await askMethods());
    showProblem("");
  } catch (error) {
    const locked = error.status === 401;
    if (locked) $("keyed").hidden = false;
    if (locked && !key) showProblem("This server needs an API key.");
    else
      showProblem(
        locked ? "The server does not accept this key." : `${error.message} A saved run can still be loaded.`,
      );
  }
}
