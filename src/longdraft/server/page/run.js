// A run from its start to its end, whichever way it ends.
import { Problem, events } from "./client.js";
import { connect } from "./connect.js";
import { $ } from "./dom.js";
import { Wrong, fieldOf, readForm, showProblem } from "./form.js";
import { calm, controls, endOf, note, open, say, showVerdict, state, tokensOf, wake } from "./page.js";
import { count, sentence } from "./text.js";
import { Refused, checkEnded, checkHeader, checkRound, isObject, refuseUnless } from "./trace.js";

export async function run() {
  if ($("method").disabled) await connect(); // the first visit, or the server did not answer then
  if (state.running || $("method").disabled) return;
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
  bringUp();
  try {
    for await (const event of events(body, state.running.signal)) take(event, attempt);
    say(
      attempt.done ? `Done: ${count(tokensOf(state.trace), "token")}.` : "The server ended the run without a result.",
    );
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

// On a narrow screen the result is below the form.
function bringUp() {
  if ($("result").getBoundingClientRect().top < innerHeight / 3) return;
  $("result").scrollIntoView({ behavior: calm.matches ? "auto" : "smooth" });
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
    bringUp();
    say(state.lanes.length > 1 ? "Decoding: both lanes take turns on one machine." : "Decoding.");
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
  const message =
    error instanceof Problem ? error.message : `The server sent something that cannot be shown (${error.message}).`;
  if (error.status === 401) $("keyed").hidden = false;
  if (attempt.begun) {
    say("The run broke off.");
    return note(sentence(message) + kept);
  }
  $("again").hidden = Boolean(error.status) && error.status < 500;
  say("Nothing ran.");
  showProblem(message, error.status === 401 ? $("key") : fieldOf(error.param));
}
