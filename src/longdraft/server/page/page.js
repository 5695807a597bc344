// The page: a run or a saved trace, shown at one time of one clock.
import { $, element } from "./dom.js";
import { Lane, styleOf } from "./lane.js";
import { Scroll } from "./scroll.js";
import { Strip } from "./strip.js";
import { count, seconds } from "./text.js";
import { MOST, Refused, firstDifference, parseTrace, refuseUnless } from "./trace.js";
import { drawTree } from "./tree.js";

const AUTOMATIC = 160; // milliseconds between two trees while tokens come by themselves
const SLICE = 8; // milliseconds of a frame that may go into new chips

export const calm = matchMedia("(prefers-reduced-motion: reduce)");
const strip = new Strip($("bins"), $("place"), $("reads"));
export const state = {
  trace: null,
  file: null, // the text that it was loaded from, which is saved again as it is: numbers here have 53 bits
  lanes: [],
  scroll: null,
  marked: false, // whether the lanes' first difference has been shown
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
export const endOf = () => Math.max(0, ...state.lanes.map((lane) => lane.rounds[lane.rounds.length - 1]?.at_s ?? 0));
export const tokensOf = (trace) => trace.lanes[trace.lanes.length - 1].rounds.reduce((n, r) => n + r.tokens.length, 0);

export function open(trace, live, file = null) {
  Object.assign(state, { trace, live, file, playing: false, pinned: null, pointed: null, drawn: null });
  state.lanes = trace.lanes.map((lane, i) => new Lane(i, lane));
  [state.scroll, state.marked] = [new Scroll(state.lanes), false];
  state.t = live ? 0 : endOf();
  $("lanes").replaceChildren(...state.lanes.map((lane) => lane.root));
  $("lanes").classList.toggle("single", state.lanes.length === 1);
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

export function wake() {
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
  const changed = state.lanes.map((lane) => lane.show(state.live ? lane.rounds.length : lane.until(state.t)));
  if (changed.includes(true)) state.scroll.follow();
  if (whole && !state.running) markDifference();
  const plain = state.lanes.length > 1 ? state.lanes[0] : null;
  state.lanes.forEach((lane) => lane.figure(plain));
  const settled = inspect(now);
  fillLegend();
  controls();
  if (!whole || state.playing || !settled) wake();
}

// Marks the first token that differs in both lanes, once, and brings it into view.
function markDifference() {
  const n = state.marked || state.trace.equal !== false ? null : firstDifference(state.trace);
  if (n === null || state.lanes.some((lane) => lane.tokens[lane.shown] <= n)) return;
  state.marked = true;
  state.lanes.forEach((lane) => lane.mark(n));
  state.scroll.to(n);
}

// Shows the tree of the pinned, pointed or newest round -> whether the newest one is shown.
function inspect(now) {
  const ifShown = (place) => (place && place.i < state.lanes[place.lane].shown ? place : null);
  const chosen = ifShown(state.pinned) ?? ifShown(state.pointed);
  const newest = { lane: state.lanes.length - 1, i: main().shown - 1 };
  const [place, moving] = [chosen ?? newest, state.live || state.playing];
  const same = state.drawn && state.drawn.lane === place.lane && state.drawn.i === place.i;
  strip.show(place.lane === newest.lane ? place.i : newest.i);
  if (same) return true;
  if (!chosen && moving && (calm.matches || now - state.drawnAt < AUTOMATIC)) return calm.matches;
  [state.drawn, state.drawnAt] = [place, now];
  showRound(place);
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
  shown.group(i)?.classList.add("current");
  const before = i ? shown.rounds[i - 1].texts : ["prompt"];
  $("round-title").textContent = `Round ${i + 1} of ${shown.data.method}`;
  $("round-about").textContent = aboutRound(round, i ? shown.rounds[i - 1].at_s : 0);
  $("tree").replaceChildren(drawTree(round, before[before.length - 1]));
}

function aboutRound(round, since) {
  const ms = (s) => `${(1000 * s).toFixed(s < 0.01 ? 1 : 0)} ms`;
  const whole = Math.max(0, round.at_s - since);
  if (!round.nodes.length) return `nothing drafted: one token in ${ms(whole)}`;
  const kept = `${round.accepted} of ${round.nodes.length} drafted kept`;
  return `${kept}, ${count(round.tokens.length, "token")} in ${ms(whole)}, ${ms(round.draft_s)} of it drafting`;
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
  const rest = drafted.length ? [item("no", "rejected", "")] : [];
  $("legend").replaceChildren(...title, ...drafted, ...rest, item("own", "target", "its own token"));
}

const ABOUT = JSON.parse($("labels").textContent); // of what drafted, by its name in traces

export function showVerdict() {
  const [line, trace] = [$("verdict"), state.trace];
  const over = !state.running && trace.lanes.length > 1;
  const words = { true: "yes", false: "NO" }[trace.equal];
  line.hidden = !over;
  line.className = `verdict ${words ?? "unknown"}`;
  if (!over) return;
  if (trace.equal === true)
    line.textContent = `equal: yes. Both lanes wrote the same ${count(tokensOf(trace), "token")}.`;
  else if (trace.equal === false) {
    const difference = firstDifference(trace);
    const from = difference === null ? "" : ` from token ${difference + 1} on`;
    const rounding =
      trace.exact === false ? " On this backend two tokens that tie within rounding can fall either way." : "";
    line.textContent = `equal: NO. The lanes differ${from}.${rounding}`;
  } else line.textContent = "equal: not known, because the run did not reach its end.";
}

function fillSettings(trace) {
  const named = (options) =>
    Object.entries(options ?? {})
      .map(([k, v]) => `${k}=${v}`)
      .join(", ") || "none";
  const last = trace.lanes[trace.lanes.length - 1];
  const rows = [
    ["Model", trace.model],
    ["Method", last.method],
    ["Options", named(last.options)],
    ["Sampler", named(trace.sampler)],
    ["Seed", trace.seed ?? "–"],
    ["Prompt", count(trace.prompt_tokens, "token")],
  ];
  $("settings").replaceChildren(
    ...rows.flatMap(([name, value]) => [element("dt", "", name), element("dd", "", String(value))]),
  );
  $("text").textContent = trace.prompt ?? "";
}

export function controls() {
  const [end, idle] = [endOf(), Boolean(state.trace) && !state.running];
  $("run").disabled = Boolean(state.running);
  $("stop").disabled = !state.running;
  $("stop-here").hidden = !state.running;
  $("play").disabled = $("clock").disabled = !idle || !end;
  $("save").disabled = !idle;
  $("play").textContent = state.playing ? "Pause" : "Play";
  $("clock").max = String(end || 1);
  $("clock").value = String(state.t);
  $("time").textContent = state.live || !end ? seconds(state.t) : `${seconds(state.t)} of ${seconds(end)}`;
  $("clock").setAttribute("aria-valuetext", seconds(state.t));
}

export function say(text) {
  if ($("status").textContent !== text) $("status").textContent = text;
}

export function note(text) {
  $("notice").textContent = text;
  $("notice").hidden = !text;
}

export async function load(file) {
  if (state.running) return note("A run is going on: stop it before you load another.");
  try {
    refuseUnless(file.size <= MOST.file, `it is larger than ${MOST.file >> 20} MB`);
    showSaved(await file.text());
  } catch (error) {
    if (!(error instanceof Refused)) console.error(error);
    note(`${file.name} was not loaded: ${error instanceof Refused ? error.message : "it cannot be read"}.`);
  }
}

export function showSaved(text) {
  const trace = parseTrace(text);
  open(trace, false, text);
  const day = /^\d{4}-\d\d-\d\d/.exec(trace.time ?? "")?.[0];
  say(`A saved run of ${trace.model}${day ? ` of ${day}` : ""}: ${count(tokensOf(trace), "token")}.`);
}

export function save() {
  const link = element("a");
  link.href = URL.createObjectURL(new Blob([state.file ?? JSON.stringify(state.trace)], { type: "application/json" }));
  link.download = `longdraft-${main().data.method.replace(/[^\w-]/g, "")}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
