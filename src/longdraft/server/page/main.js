// The first visit: the page's parts are connected, and the server is asked or an embedded run shown.
import { connect } from "./connect.js";
import { $ } from "./dom.js";
import { wireDrop, wireLanes, wireReplay } from "./events.js";
import { wireForm } from "./form.js";
import { controls, note, say, showSaved, state } from "./page.js";
import { run } from "./run.js";
import { Refused } from "./trace.js";
import { drawTree } from "./tree.js";

// The first round of "How to read it", as its tree.
const SAMPLE = {
  tokens: [1, 2, 3, 4],
  texts: [" relief", " boat", " landed", " at"],
  accepted: 3,
  path: [0, 2, 4],
  nodes: [
    [-1, " relief"],
    [-1, " lamp"],
    [0, " boat"],
    [1, " was"],
    [2, " landed"],
    [2, " could"],
    [4, " safely"],
    [5, " not"],
    [6, " today"],
  ].map(([parent, text]) => ({ parent, text, token: 0, by: "model" })),
};

// Without a server there is nothing to run: a file replays what is embedded in it or loaded.
function start() {
  wireForm();
  wireLanes();
  wireReplay();
  wireDrop();
  controls();
  $("sample").replaceChildren(drawTree(SAMPLE, "The"));
  const embedded = $("trace");
  if (embedded || location.protocol === "file:") {
    document.body.classList.add("alone");
    $("form").hidden = true;
    if (!embedded) return say("Load a saved run, or drop it anywhere on this page.");
    try {
      return showSaved(embedded.textContent);
    } catch (error) {
      return note(
        `The run in this page cannot be shown: ${error instanceof Refused ? error.message : "it cannot be read"}.`,
      );
    }
  }
  $("form").addEventListener("submit", (e) => {
    e.preventDefault();
    run();
  });
  for (const id of ["stop", "stop-here"]) $(id).addEventListener("click", () => state.running?.abort());
  $("again").addEventListener("click", () => run());
  $("connect").addEventListener("click", connect);
  $("key").addEventListener("keydown", (e) => {
    if (e.key !== "Enter") return;
    e.preventDefault();
    connect();
  });
  connect();
}

start();
