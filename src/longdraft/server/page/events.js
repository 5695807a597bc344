// What the pointer, the keyboard and the first visit do.
function place(target) {
  const round = target.closest?.(".round");
  const root = target.closest?.(".lane");
  const lane = state.lanes.findIndex((x) => x.root === root);
  return round && lane >= 0 ? { lane, i: Number(round.dataset.round) } : null;
}

function point(at) {
  state.pointed = at;
  wake();
}

function pin(at) {
  const old = state.pinned;
  state.pinned = old && at && old.lane === at.lane && old.i === at.i ? null : at;
  document.querySelectorAll('.round[aria-selected="true"]').forEach((x) => x.setAttribute("aria-selected", "false"));
  if (state.pinned) state.lanes[at.lane].at(at.i).setAttribute("aria-selected", "true");
  state.drawn = null;
  wake();
}

function roundKey(e) {
  const at = place(e.target);
  if (!at) return;
  const lane = state.lanes[at.lane];
  const to = {
    ArrowLeft: at.i - 1,
    ArrowUp: at.i - 1,
    ArrowRight: at.i + 1,
    ArrowDown: at.i + 1,
    PageUp: at.i - 10,
    PageDown: at.i + 10,
    Home: 0,
    End: lane.shown - 1,
  }[e.key];
  if (to !== undefined) lane.focus(to);
  else if (e.key === "Enter" || e.key === " ") pin(at);
  else return;
  e.preventDefault();
}

function wireLanes() {
  const lanes = $("lanes");
  lanes.addEventListener("pointerover", (e) => point(place(e.target) ?? place(document.activeElement)));
  lanes.addEventListener("pointerleave", () => point(place(document.activeElement)));
  lanes.addEventListener("focusin", (e) => place(e.target) && point(place(e.target)));
  lanes.addEventListener("focusout", () => point(null));
  lanes.addEventListener("click", (e) => place(e.target) && pin(place(e.target)));
  lanes.addEventListener("keydown", roundKey);
  $("unpin").addEventListener("click", () => pin(null));
  document.addEventListener("keydown", (e) => e.key === "Escape" && state.pinned && pin(null));
  $("rejected").addEventListener("change", () => $("lanes").classList.toggle("kept-only", !$("rejected").checked));
}

function wireReplay() {
  $("play").addEventListener("click", () => {
    if (!state.playing && state.t >= endOf()) state.t = 0;
    state.playing = !state.playing;
    controls();
    wake();
  });
  $("clock").addEventListener("input", () => {
    [state.t, state.playing] = [Number($("clock").value), false];
    wake();
  });
  $("save").addEventListener("click", save);
  $("load").addEventListener("click", () => $("trace-file").click());
  $("trace-file").addEventListener("change", () => {
    if ($("trace-file").files[0]) load($("trace-file").files[0]);
    $("trace-file").value = "";
  });
}

function wireDrop() {
  document.addEventListener("dragover", (e) => {
    if (!e.dataTransfer?.types.includes("Files")) return;
    e.preventDefault();
    document.body.classList.add("dropping");
  });
  document.addEventListener("dragleave", (e) => e.relatedTarget || document.body.classList.remove("dropping"));
  document.addEventListener("drop", (e) => {
    document.body.classList.remove("dropping");
    const file = e.dataTransfer?.files[0];
    if (!file) return;
    e.preventDefault();
    if (/\.(txt|md)$/i.test(file.name) && !$("form").hidden) openText(file);
    else load(file);
  });
}

async function connect() {
  apiKey = $("key").value.trim();
  try {
    if (apiKey && /[^\x21-\x7e]/.test(apiKey))
      throw new Problem("An API key has no spaces and no letters beyond ASCII.");
    fillMethods(await methods());
    showProblem("");
  } catch (error) {
    const locked = error.status === 401;
    if (locked) $("keyed").hidden = false;
    if (locked && !apiKey) showProblem("This server needs an API key.");
    else
      showProblem(
        locked ? "The server does not accept this key." : `${error.message} A saved run can still be loaded.`,
      );
  }
}

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
