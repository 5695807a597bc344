// The page: a run or a saved trace, shown at one time of one clock.
const AUTOMATIC = 160; // milliseconds between two trees while tokens come by themselves
const SLICE = 8; // milliseconds of a frame that may go into new chips

const calm = matchMedia("(prefers-reduced-motion: reduce)");
const strip = new Strip($("bins"), $("place"), $("reads"));
const state = {
  trace: null,
  lanes: [],
  running: null, // the AbortController of the run
  live: false, // whether the newest round is shown, whatever the clock says
  playing: false,
  t: 0,
  pinned: null, // {lane, i}
  pointed: null, // the same, under the pointer or the focus
  drawn: null, // the round whose tree is drawn
  drawnAt: 0,
  frameAt: null,
  waiting: false, // whether a frame has been asked for
};

const main = () => state.lanes[state.lanes.length - 1];
const endOf = () => Math.max(0, ...state.lanes.map((lane) => lane.rounds[lane.rounds.length - 1]?.at_s ?? 0));
const tokensOf = (trace) => trace.lanes[trace.lanes.length - 1].rounds.reduce((n, r) => n + r.tokens.length, 0);

function open(trace, live) {
  Object.assign(state, { trace, live, playing: false, pinned: null, pointed: null, drawn: null });
  state.lanes = trace.lanes.map((lane, i) => new Lane(i, lane));
  state.t = live ? 0 : endOf();
  $("lanes").replaceChildren(...state.lanes.map((lane) => lane.root));
  $("lanes").classList.toggle("one", state.lanes.length === 1);
  $("anatomy").hidden = true;
  $("view").hidden = false;
  $("notice").hidden = true;
  $("again").hidden = true;
  $("saved").hidden = live;
  if (!live) fillSettings(trace);
  strip.begin(trace, main());
  $("legend").replaceChildren();
  showVerdict();
  controls();
  wake();
}

function wake() {
  if (state.waiting) return;
  state.waiting = true;
  requestAnimationFrame(frame);
}

function frame(now) {
  state.waiting = false;
  if (!state.trace) return;
  const deadline = performance.now() + SLICE;
  const whole = state.lanes.map((lane) => lane.build(lane.rounds.length, deadline)).every((x) => x);
  if (state.playing) {
    const passed = state.frameAt === null ? 0 : Math.min(0.25, (now - state.frameAt) / 1000);
    state.t = Math.min(endOf(), state.t + passed * Number($("speed").value));
    if (state.t >= endOf()) state.playing = false;
  }
  state.frameAt = state.playing ? now : null;
  if (state.live) state.t = endOf();
  state.lanes.forEach((lane) => lane.show(state.live ? lane.rounds.length : lane.until(state.t)));
  const plain = state.lanes.length > 1 ? state.lanes[0] : null;
  state.lanes.forEach((lane) => lane.figure(plain));
  const settled = inspect(now);
  fillLegend();
  controls();
  if (!whole || state.playing || !settled) wake();
}

// Shows the tree of the pinned, pointed or newest round -> whether the newest one is shown.
function inspect(now) {
  const there = (at) => (at && at.i < state.lanes[at.lane].shown ? at : null);
  const chosen = there(state.pinned) ?? there(state.pointed);
  const newest = { lane: state.lanes.length - 1, i: main().shown - 1 };
  const [at, moving] = [chosen ?? newest, state.live || state.playing];
  const same = state.drawn && state.drawn.lane === at.lane && state.drawn.i === at.i;
  strip.show(at.lane === newest.lane ? at.i : newest.i);
  if (same) return true;
  if (!chosen && moving && (calm.matches || now - state.drawnAt < AUTOMATIC)) return calm.matches;
  [state.drawn, state.drawnAt] = [at, now];
  showRound(at);
  return true;
}

function showRound({ lane, i }) {
  const shown = state.lanes[lane];
  const round = shown.rounds[i];
  document.querySelectorAll(".round.current").forEach((x) => x.classList.remove("current"));
  $("unpin").hidden = !state.pinned;
  if (!round) {
    $("round-title").textContent = "Draft tree";
    $("round-about").textContent = "";
    return $("tree").replaceChildren();
  }
  shown.at(i)?.classList.add("current");
  const before = i ? shown.rounds[i - 1].texts : ["prompt"];
  $("round-title").textContent = `Round ${i + 1} of ${shown.data.method}`;
  $("round-about").textContent = aboutRound(round, i ? shown.rounds[i - 1].at_s : 0);
  $("tree").replaceChildren(drawTree(round, before[before.length - 1]));
}

function aboutRound(round, since) {
  const ms = (s) => `${(1000 * s).toFixed(s < 0.01 ? 1 : 0)} ms`;
  const whole = Math.max(0, round.at_s - since);
  if (!round.nodes.length) return `nothing drafted: one token in ${ms(whole)}`;
  return `${round.accepted} of ${round.nodes.length} drafted kept, ${count(round.tokens.length, "token")} in ${ms(whole)}, ${ms(round.draft_s)} of it drafting`;
}

function fillLegend() {
  const names = new Set(state.lanes.flatMap((lane) => [...lane.by]));
  const key = [...names].join("|");
  if ($("legend").dataset.names === key && $("legend").children.length) return;
  $("legend").dataset.names = key;
  const item = (className, sample, text) => {
    const made = element("li");
    made.append(element("span", `t ${className}`, sample), ` ${text}`);
    return made;
  };
  const drafted = [...names].map((by) => item(styleOf(by), by, ABOUT[by] ?? ""));
  const title = drafted.length ? [element("li", "", "Drafted by")] : [];
  const rest = drafted.length ? [item("no", "rejected", "not kept")] : [];
  $("legend").replaceChildren(...title, ...drafted, ...rest, item("own", "own", "the target’s own token"));
}

const ABOUT = { model: "the model under its view", "n-grams": "n-grams of the text", heads: "trained heads", drafter: "a small model" };

function showVerdict() {
  const [line, trace] = [$("verdict"), state.trace];
  const over = !state.running && trace.lanes.length > 1;
  const words = { true: "yes", false: "NO" }[trace.equal];
  line.hidden = !over;
  line.className = `verdict ${words ?? "unknown"}`;
  if (!over) return;
  if (trace.equal === true) line.textContent = `equal: yes. Both lanes wrote the same ${count(tokensOf(trace), "token")}.`;
  else if (trace.equal === false) {
    const at = firstDifference(trace);
    const rounding = trace.exact === false ? " On this backend two tokens that tie within rounding can fall either way." : "";
    line.textContent = `equal: NO. The lanes differ${at === null ? "" : ` from token ${at + 1} on`}.${rounding}`;
  } else line.textContent = "equal: not known, because the run did not reach its end.";
}

function fillSettings(trace) {
  const named = (options) => Object.entries(options ?? {}).map(([k, v]) => `${k}=${v}`).join(", ") || "none";
  const last = trace.lanes[trace.lanes.length - 1];
  const rows = [["Model", trace.model], ["Method", last.method], ["Options", named(last.options)], ["Sampler", named(trace.sampler)], ["Seed", trace.seed ?? "–"], ["Prompt", count(trace.prompt_tokens, "token")]];
  $("settings").replaceChildren(...rows.flatMap(([name, value]) => [element("dt", "", name), element("dd", "", String(value))]));
  $("text").textContent = trace.prompt ?? "";
}

function controls() {
  const [end, idle] = [endOf(), Boolean(state.trace) && !state.running];
  $("run").disabled = Boolean(state.running);
  $("stop").disabled = !state.running;
  $("play").disabled = $("clock").disabled = !idle || !end;
  $("save").disabled = !idle;
  $("play").textContent = state.playing ? "Pause" : "Play";
  $("clock").max = String(end || 1);
  $("clock").value = String(state.t);
  $("time").textContent = state.live || !end ? seconds(state.t) : `${seconds(state.t)} of ${seconds(end)}`;
  $("clock").setAttribute("aria-valuetext", seconds(state.t));
}

function say(text) {
  if ($("status").textContent !== text) $("status").textContent = text;
}

function note(text) {
  $("notice").textContent = text;
  $("notice").hidden = !text;
}

async function run() {
  if (state.running) return;
  showProblem("");
  note("");
  $("again").hidden = true;
  let body;
  try {
    body = readForm();
  } catch (error) {
    if (!(error instanceof Wrong)) throw error;
    return showProblem(error.message, error.field);
  }
  const attempt = { begun: false, done: false, budget: { tokens: 0, nodes: 0 } };
  state.running = new AbortController();
  state.playing = false;
  say("Waiting for the server…");
  controls();
  const below = $("result").getBoundingClientRect().top > innerHeight / 2;
  if (below) $("result").scrollIntoView({ behavior: calm.matches ? "auto" : "smooth" });
  try {
    for await (const event of events(body, state.running.signal)) take(event, attempt);
    say(attempt.done ? `Done: ${count(tokensOf(state.trace), "token")}.` : "The server ended the run without a result.");
    $("again").hidden = attempt.done;
  } catch (error) {
    failed(error, attempt);
  } finally {
    [state.running, state.live] = [null, false];
    $("progress").hidden = true;
    if (attempt.begun) {
      state.t = endOf();
      showVerdict();
    }
    wake();
    controls();
  }
}

function take(event, attempt) {
  refuseUnless(isObject(event), "an event must be an object");
  if (event.event === "reading") {
    const [done, total] = [Number(event.done) || 0, Math.max(1, Number(event.total) || 1)];
    say("Reading the prompt…");
    $("progress").hidden = false;
    [$("progress").max, $("progress").value] = [total, done];
  } else if (event.event === "begin") {
    open(checkHeader(event.trace), true);
    attempt.begun = true;
    $("progress").hidden = true;
    say("Decoding: both lanes take turns on one machine.");
  } else if (event.event === "round" && attempt.begun) {
    const lane = state.lanes[event.lane];
    refuseUnless(lane, "a round names a lane that there is not");
    const last = lane.rounds[lane.rounds.length - 1];
    checkRound(event.round, `lane ${event.lane}, round ${lane.rounds.length}`, last?.at_s ?? 0, attempt.budget);
    lane.add(event.round);
    wake();
  } else if (event.event === "end" && attempt.begun) {
    const ends = event.trace?.lanes;
    refuseUnless(Array.isArray(ends) && ends.length === state.lanes.length, "the end must name every lane");
    ends.forEach((end, i) => {
      checkEnded(end?.ended ?? null, `lane ${i}`);
      state.trace.lanes[i].ended = end?.ended ?? null;
    });
    state.trace.equal = typeof event.trace.equal === "boolean" ? event.trace.equal : null;
    attempt.done = true;
  }
}

function failed(error, attempt) {
  const kept = attempt.begun ? ` What came is kept: ${count(tokensOf(state.trace), "token")}, which you can save.` : "";
  $("again").hidden = false;
  if (error.name === "AbortError") {
    if (attempt.begun) for (const lane of state.trace.lanes) lane.ended ??= "cancelled";
    return say(`Stopped.${kept}`);
  }
  if (!(error instanceof Problem || error instanceof Refused)) console.error(error);
  const what = error instanceof Problem ? error.message : `The server sent something that cannot be shown (${error.message}).`;
  if (error.status === 401) $("keyed").hidden = false;
  if (attempt.begun) {
    say("The run broke off.");
    return note(what + kept);
  }
  $("again").hidden = Boolean(error.status) && error.status < 500;
  say("Nothing ran.");
  showProblem(what, error.status === 401 ? $("key") : fieldOf(error.param));
}

async function load(file) {
  if (state.running) return note("A run is going on: stop it before you load another.");
  try {
    refuseUnless(file.size <= MOST.file, `it is larger than ${MOST.file >> 20} MB`);
    showSaved(parseTrace(await file.text()));
  } catch (error) {
    if (!(error instanceof Refused)) console.error(error);
    note(`${file.name} was not loaded: ${error instanceof Refused ? error.message : "it cannot be read"}.`);
  }
}

function showSaved(trace) {
  open(trace, false);
  const day = /^\d{4}-\d\d-\d\d/.exec(trace.time ?? "")?.[0];
  say(`A saved run of ${trace.model}${day ? ` of ${day}` : ""}: ${count(tokensOf(trace), "token")}.`);
}

function save() {
  const link = element("a");
  link.href = URL.createObjectURL(new Blob([JSON.stringify(state.trace)], { type: "application/json" }));
  link.download = `longdraft-${main().data.method.replace(/[^\w-]/g, "")}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
