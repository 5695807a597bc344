// One lane: its tokens as chips in rounds, and its figures. Chips are appended once, and then only hidden or shown.
import { element } from "./dom.js";
import { count, visible } from "./text.js";

const STYLES = new Map([
  ["model", 0],
  ["n-grams", 1],
  ["heads", 2],
  ["small model", 3],
  ["block", 4],
  ["drafter", 5],
]);
const REJECTED = 4; // the maximum number of rejected drafts of a round shown as chips; the tree shows all

const LONG = 24; // characters that are kept on one line
const WORD_END = /[\p{Script=Latin}\p{Script=Greek}\p{Script=Cyrillic}\p{N}]$/u;
const WORD_START = /^[\p{Script=Latin}\p{Script=Greek}\p{Script=Cyrillic}\p{N}]/u;
const CLOSING = /^[.,;:!?)\]}»”’'"%…-]/;
const ENDS = { eos: "ended with an end token", length: "reached its token limit", cancelled: "stopped" };

export function styleOf(by) {
  if (!STYLES.has(by)) STYLES.set(by, 4 + ((STYLES.size - 4) % 2));
  return `d${STYLES.get(by)}`;
}

export class Lane {
  constructor(index, data) {
    [this.index, this.data] = [index, data];
    // By round, with a leading 0: tokens, accepted tokens and drafting rounds up to there.
    [this.tokens, this.accepted, this.drafting] = [[0], [0], [0]];
    this.groups = []; // the rounds' elements
    this.built = 0; // rounds that have chips
    this.shown = 0; // of these, the visible ones
    [this.before, this.run] = ["", 0]; // the last chip's text, and the characters without a place to break
    this.by = new Set(); // who drafted
    this.root = element("section", data.method === "plain" ? "lane plain" : "lane");
    this.root.setAttribute("aria-label", data.method);
    const head = element("div", "head");
    this.more = element("p", "hint more");
    this.end = element("p", "hint end");
    head.append(
      element("h2", "", data.method),
      element(
        "p",
        "hint",
        Object.entries(data.options ?? {})
          .map(([k, v]) => `${k}=${v}`)
          .join(" "),
      ),
      this.more,
      this.end,
    );
    this.figures = element("dl", "figures");
    this.box = element("div", "box");
    this.list = element("div", "rounds");
    this.list.setAttribute("role", "listbox");
    this.list.setAttribute("aria-label", `Rounds of ${data.method}; arrow keys go from one to the next`);
    this.box.append(this.list);
    this.root.append(head, this.figures, this.box);
    data.rounds.forEach((round) => this.count(round));
  }

  get rounds() {
    return this.data.rounds;
  }

  add(round) {
    this.rounds.push(round);
    this.count(round);
  }

  count(round) {
    const last = (list) => list[list.length - 1];
    this.tokens.push(last(this.tokens) + round.tokens.length);
    this.accepted.push(last(this.accepted) + round.accepted);
    this.drafting.push(last(this.drafting) + (round.nodes.length > 0));
    round.nodes.forEach((n) => this.by.add(n.by));
  }

  // How many rounds have ended by time t.
  until(t) {
    return upper(this.rounds.length, (i) => this.rounds[i].at_s <= t);
  }

  // The time at which there were n tokens.
  reached(n) {
    const i = upper(this.rounds.length, (r) => this.tokens[r + 1] < n);
    return i < this.rounds.length ? this.rounds[i].at_s : null;
  }

  // Chips for rounds up to `upTo`, until the deadline -> whether all are there.
  build(upTo, deadline) {
    const made = document.createDocumentFragment();
    while (this.built < upTo && (this.built % 16 || performance.now() < deadline)) {
      const group = this.chips(this.built++);
      this.groups.push(group);
      if (group.firstChild.tagName === "WBR") made.append(group.firstChild); // a line breaks before the round's mark
      made.append(group);
    }
    this.list.append(made);
    return this.built >= upTo;
  }

  chips(i) {
    const round = this.rounds[i];
    const group = element("span", "round");
    group.setAttribute("role", "option");
    group.setAttribute("aria-selected", "false");
    group.setAttribute("aria-label", describe(round, i));
    group.dataset.round = i;
    group.tabIndex = i ? -1 : 0;
    group.hidden = true;
    const add = (text, style) => group.append(...this.chip(text, style));
    round.path.forEach((node, depth) => add(round.texts[depth], styleOf(round.nodes[node].by)));
    const rejected = rejectedFirst(round);
    rejected
      .slice(0, REJECTED)
      .forEach((n) =>
        group.append(document.createElement("wbr"), element("span", "t no", visible(n.text).trim() || "␣")),
      );
    if (rejected.length > REJECTED) group.append(element("span", "t no more", `+${rejected.length - REJECTED}`));
    round.texts.slice(round.accepted).forEach((text) => add(text, "own"));
    return group;
  }

  // A chip, with a place before it where a line may break, and a line break after it if the text ends a line.
  chip(text, style) {
    const made = element("span", `t ${style}${text.length > LONG ? " long" : ""}`, visible(text));
    const joined = CLOSING.test(text) ? /\S$/.test(this.before) : WORD_END.test(this.before) && WORD_START.test(text);
    const inWord = joined && this.run + text.length <= LONG;
    [this.before, this.run] = [text, inWord ? this.run + text.length : text.length];
    const parts = inWord ? [made] : [document.createElement("wbr"), made];
    return text.endsWith("\n") ? [...parts, element("br")] : parts;
  }

  // Shows the first k rounds (of those that are built) -> whether these are others than before.
  show(k) {
    k = Math.min(k, this.built);
    for (let i = Math.min(k, this.shown); i < Math.max(k, this.shown); i++) this.groups[i].hidden = i >= k;
    const changed = k !== this.shown;
    this.shown = k;
    return changed;
  }

  // The chip of token n, of those that are shown the last one if there are fewer.
  token(n) {
    const i = Math.min(upper(this.rounds.length, (r) => this.tokens[r + 1] <= n), this.shown - 1);
    const chips = this.groups[i]?.querySelectorAll(".t:not(.no)") ?? [];
    return chips[Math.min(n - this.tokens[i], chips.length - 1)];
  }

  // Where the box must scroll to so that token n is at its top.
  topOf(n) {
    const chip = this.token(n);
    return chip ? chip.getBoundingClientRect().top - this.box.getBoundingClientRect().top + this.box.scrollTop - 6 : 0;
  }

  tokenAtTop() {
    const top = this.box.getBoundingClientRect().top;
    return upper(this.tokens[this.shown], (n) => this.token(n).getBoundingClientRect().bottom <= top + 6);
  }

  mark(n) {
    const chip = this.token(n);
    chip?.classList.add("differs");
    chip?.setAttribute("title", "the first token that differs");
  }

  group(i) {
    return this.groups[i];
  }

  focus(i) {
    const next = this.group(Math.max(0, Math.min(i, this.shown - 1)));
    if (!next) return;
    this.list.querySelector('[tabindex="0"]')?.setAttribute("tabindex", "-1");
    next.tabIndex = 0;
    next.focus();
  }

  // plain: the lane to compare with, or null. Its own figures are of the rounds that are shown.
  measure(plain) {
    const [k, n] = [this.shown, this.tokens[this.shown]];
    const s = k ? this.rounds[k - 1].at_s : 0;
    const figures = [
      ["tokens", n.toLocaleString("en")],
      ["seconds", s.toFixed(2)],
      ["tokens/s", s > 0 ? (n / s).toFixed(1) : "–"],
    ];
    if (this.data.method === "plain") return figures;
    const drafts = this.drafting[k];
    figures.push(["mean acceptance length", drafts ? (1 + this.accepted[k] / drafts).toFixed(2) : "–"]);
    if (plain) {
      const both = Math.min(n, plain.tokens[plain.shown]);
      const [own, other] = both ? [this.reached(both), plain.reached(both)] : [null, null];
      figures.push(["speedup", own && other ? `${(other / own).toFixed(2)}×` : "–"]);
    }
    return figures;
  }

  figure(plain) {
    const figures = this.measure(plain);
    if (this.figures.children.length !== figures.length) {
      this.figures.replaceChildren(
        ...figures.map(([name]) => {
          const pair = element("div", name === "speedup" ? "speedup" : "");
          pair.append(element("dt", "", name), element("dd"));
          return pair;
        }),
      );
    }
    const ended = this.shown === this.rounds.length ? (ENDS[this.data.ended] ?? "") : "";
    if (this.end.textContent !== ended) this.end.textContent = ended;
    figures.forEach(([, value], i) => {
      const dd = this.figures.children[i].lastChild;
      if (dd.textContent !== value) dd.textContent = value;
    });
  }
}

// The rejected drafts of a round, and first those that stood where the target said something else.
function rejectedFirst(round) {
  const kept = new Set(round.path);
  const last = round.path.length ? round.path[round.path.length - 1] : -1;
  const rejected = round.nodes.filter((_, i) => !kept.has(i));
  return [...rejected.filter((n) => n.parent === last), ...rejected.filter((n) => n.parent !== last)];
}

function describe(round, i) {
  const drafted = round.nodes.length;
  const how = drafted ? `${round.accepted} of ${drafted} drafted tokens kept` : "nothing drafted";
  return `Round ${i + 1}: ${how}; ${visible(round.texts.join(""))}`;
}

// The first i below n for which good(i) is false; good must be true up to some i and false from there on.
function upper(n, good) {
  let low = 0;
  while (low < n) {
    const middle = (low + n) >> 1;
    if (good(middle)) low = middle + 1;
    else n = middle;
  }
  return low;
}
