// Checks what comes from outside, a file or a stream, before anything of it is shown.
const FORMAT = "longdraft-trace";
const VERSION = 1;
export const MOST = {
  tokens: 100_000,
  nodes: 4096,
  allNodes: 1_000_000,
  text: 1024,
  bins: 256,
  file: 64 << 20,
  seconds: 1e7,
};

export class Refused extends Error {}

export function refuseUnless(good, message) {
  if (!good) throw new Refused(message);
}

export const isObject = (x) => typeof x === "object" && x !== null && !Array.isArray(x);
export const isWhole = (x, most = Number.MAX_SAFE_INTEGER) => Number.isInteger(x) && x >= 0 && x <= most;
export const isText = (x, most = MOST.text) => typeof x === "string" && x.length <= most;
const isTime = (x) => typeof x === "number" && x >= 0 && x <= MOST.seconds;

export function parseTrace(text) {
  let data;
  try {
    data = JSON.parse(text);
  } catch {
    throw new Refused("it is not JSON");
  }
  const trace = checkHeader(data);
  const budget = { tokens: 0, nodes: 0 };
  trace.lanes.forEach((lane, i) => checkLane(lane, `lane ${i}`, budget));
  checkEqual(trace);
  return trace;
}

export function checkHeader(t) {
  refuseUnless(isObject(t) && t.format === FORMAT, `it is not a trace ("format" must be "${FORMAT}")`);
  refuseUnless(
    t.version === VERSION,
    `its version is ${String(JSON.stringify(t.version)).slice(0, 20)}: this page reads version ${VERSION}`,
  );
  refuseUnless(isText(t.model), "model must be a text");
  refuseUnless(isWhole(t.prompt_tokens, 1e9), "prompt_tokens must be a whole number");
  refuseUnless(
    isWhole(t.slots, 1e9) && t.slots >= 1 && t.slots >= t.prompt_tokens,
    "slots must be a whole number, prompt_tokens or more",
  );
  refuseUnless(t.prompt === undefined || isText(t.prompt, MOST.file), "prompt must be a text");
  refuseUnless(t.time === undefined || isText(t.time, 64), "time must be a date");
  refuseUnless(t.seed === undefined || isWhole(t.seed, 2 ** 64), "seed must be a whole number");
  checkSettings(t.sampler ?? {}, "sampler");
  refuseUnless([true, false, null, undefined].includes(t.equal), "equal must be true, false or null");
  refuseUnless(Array.isArray(t.lanes) && [1, 2].includes(t.lanes.length), "lanes must be one or two");
  t.lanes.forEach((lane, i) => {
    refuseUnless(isObject(lane) && isText(lane.method, 64), `lane ${i}: method must be a text`);
    checkSettings(lane.options ?? {}, `lane ${i}: options`);
    lane.ended ??= null;
    checkEnded(lane.ended, `lane ${i}`);
    lane.rounds ??= [];
    refuseUnless(Array.isArray(lane.rounds), `lane ${i}: rounds must be a list`);
  });
  refuseUnless(t.lanes.length === 1 || t.lanes[0].method === "plain", 'the first of two lanes must be "plain"');
  return t;
}

export function checkEnded(ended, where) {
  refuseUnless(
    [null, "eos", "length", "cancelled"].includes(ended),
    `${where}: ended must be eos, length, cancelled or null`,
  );
}

function checkSettings(options, where) {
  const good = (x) => x === null || ["number", "boolean"].includes(typeof x) || isText(x);
  const entries = isObject(options) ? Object.entries(options) : null;
  refuseUnless(
    entries && entries.length <= 64 && entries.every(([name, x]) => isText(name, 64) && good(x)),
    `${where} must be names and plain values`,
  );
}

function checkLane(lane, where, budget) {
  let before = 0;
  lane.rounds.forEach((round, i) => {
    checkRound(round, `${where}, round ${i}`, before, budget);
    before = round.at_s;
  });
}

// budget: how many tokens and nodes there were so far, so that no file is too large to show.
export function checkRound(r, where, before, budget) {
  const need = (good, message) => refuseUnless(good, `${where}: ${message}`);
  need(isObject(r), "must be an object");
  need(isTime(r.at_s) && r.at_s >= before, "at_s must be a time that does not go back");
  need(isTime(r.draft_s), "draft_s must be a time");
  need(
    Array.isArray(r.tokens) && r.tokens.length <= MOST.nodes && r.tokens.every((x) => isWhole(x)),
    "tokens must be token ids",
  );
  need(r.tokens.length > 0, "a round has at least one token");
  need(
    Array.isArray(r.texts) && r.texts.length === r.tokens.length && r.texts.every((x) => isText(x)),
    "texts must be one short text for each token",
  );
  need(isWhole(r.accepted, r.tokens.length), "accepted must be a number of its tokens");
  need(Array.isArray(r.nodes) && r.nodes.length <= MOST.nodes, `nodes must be a list of at most ${MOST.nodes}`);
  r.nodes.forEach((n, i) => {
    need(
      isObject(n) && Number.isInteger(n.parent) && n.parent >= -1 && n.parent < i,
      `node ${i}: parent must be an earlier node or -1`,
    );
    need(
      isWhole(n.token) && isText(n.text) && isText(n.by, 64),
      `node ${i}: token, text and by must be an id and two short texts`,
    );
  });
  need(Array.isArray(r.path) && r.path.length === r.accepted, "path must name the accepted nodes");
  r.path.forEach((n, i) => {
    need(isWhole(n, r.nodes.length - 1), "path must be indices of nodes");
    need(r.nodes[n].parent === (i ? r.path[i - 1] : -1), "path must lead down from the root");
    need(r.nodes[n].token === r.tokens[i], "path must give the accepted tokens");
  });
  const bins = r.shown ?? null;
  need(
    bins === null ||
      (Array.isArray(bins) && bins.length >= 1 && bins.length <= MOST.bins && bins.every((x) => isWhole(x, 100))),
    `shown must be null or at most ${MOST.bins} percentages`,
  );
  budget.tokens += r.tokens.length;
  budget.nodes += r.nodes.length;
  need(
    budget.tokens <= MOST.tokens && budget.nodes <= MOST.allNodes,
    `more than ${MOST.tokens} tokens or ${MOST.allNodes} nodes are too many to show`,
  );
}

function checkEqual(trace) {
  refuseUnless(
    trace.equal !== true || firstDifference(trace) === null,
    "equal is true, but its lanes have different tokens",
  );
}

// The first place where two lanes differ, as far as both have tokens; null if there is none.
export function firstDifference(trace) {
  if (trace.lanes.length < 2) return null;
  const [a, b] = trace.lanes.map((lane) => lane.rounds.flatMap((r) => r.tokens));
  const n = Math.min(a.length, b.length);
  for (let i = 0; i < n; i++) if (a[i] !== b[i]) return i;
  return null;
}
