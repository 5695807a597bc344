// The tree of one round, from left to right; the accepted path is its first line.
import { styleOf } from "./lane.js";
import { count, visible } from "./text.js";

const SVG = "http://www.w3.org/2000/svg";
const NODE = { height: 24, gap: 6, between: 26, pad: 8, most: 22 };

function svg(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const ruler = document.createElement("canvas").getContext("2d");

function labelOf(text) {
  const shown = visible(text.trim() === "" ? text.replaceAll(" ", "␣") : text.trim());
  const chars = [...shown];
  return chars.length > NODE.most ? `${chars.slice(0, NODE.most - 1).join("")}…` : shown;
}

// The nodes to draw: the root, the draft, and the target's own token below the last accepted node.
function nodesOf(round, before) {
  const kept = new Set(round.path);
  const nodes = [{ parent: -1, text: before, kind: "root", title: "the last committed token" }];
  round.nodes.forEach((n, i) => {
    const kind = kept.has(i) ? `kept ${styleOf(n.by)}` : `left ${styleOf(n.by)}`;
    nodes.push({
      parent: n.parent + 1,
      text: n.text,
      kind,
      title: `${JSON.stringify(n.text)}, token ${n.token}, drafted by ${n.by}, ${kept.has(i) ? "kept" : "rejected"}`,
    });
  });
  const last = round.path.length ? round.path[round.path.length - 1] + 1 : 0;
  round.tokens.slice(round.accepted, round.accepted + 1).forEach((token, i) => {
    const text = round.texts[round.accepted + i];
    nodes.push({ parent: last, text, kind: "own", title: `${JSON.stringify(text)}, token ${token}, the target's own` });
  });
  return nodes;
}

// Places every node: a column for each depth, the accepted child first, so that its path is straight.
function layOut(nodes) {
  ruler.font = getComputedStyle(document.documentElement).getPropertyValue("--mono-font") || "13px monospace";
  const children = nodes.map(() => []);
  nodes.forEach((n, i) => {
    n.depth = i ? nodes[n.parent].depth + 1 : 0;
    n.label = labelOf(n.text);
    n.width = Math.ceil(ruler.measureText(n.label).width) + 2 * NODE.pad;
    if (i) children[n.parent].push(i);
  });
  const first = (i) => (/^(kept|own)/.test(nodes[i].kind) ? 0 : 1);
  children.forEach((list) => list.sort((a, b) => first(a) - first(b) || a - b));
  const widths = [];
  nodes.forEach((n) => (widths[n.depth] = Math.max(widths[n.depth] ?? 0, n.width)));
  const lefts = [];
  widths.reduce((left, width, depth) => ((lefts[depth] = left), left + width + NODE.between), 1);
  let line = 0;
  const stack = [0]; // depth first: a node is on its first child's line, and every later child begins a new one
  while (stack.length) {
    const i = stack.pop();
    const n = nodes[i];
    if (i) n.line = children[n.parent][0] === i ? nodes[n.parent].line : ++line;
    else n.line = 0;
    [n.x, n.y] = [lefts[n.depth], 1 + n.line * (NODE.height + NODE.gap)];
    for (let c = children[i].length - 1; c >= 0; c--) stack.push(children[i][c]);
  }
  const right = Math.max(...nodes.map((n) => n.x + n.width));
  return { nodes, width: right + 1, height: 2 + (line + 1) * (NODE.height + NODE.gap) - NODE.gap };
}

function edge(from, to) {
  const [x1, y1] = [from.x + from.width, from.y + NODE.height / 2];
  const [x2, y2] = [to.x, to.y + NODE.height / 2];
  const bend = to.x - NODE.between / 2;
  const d =
    y1 === y2
      ? `M${x1} ${y1}H${x2}`
      : `M${x1} ${y1}H${bend - 6}Q${bend} ${y1} ${bend} ${y1 + 6}V${y2 - 6}Q${bend} ${y2} ${bend + 6} ${y2}H${x2}`;
  return svg("path", { d, class: `edge ${to.kind}` });
}

// before: the text of the token that the round began with.
export function drawTree(round, before) {
  const { nodes, width, height } = layOut(nodesOf(round, before));
  const drawn = svg("svg", {
    width,
    height,
    viewBox: `0 0 ${width} ${height}`,
    role: "img",
    "aria-label": treeInWords(round, before),
  });
  const weak = (n) => (n.kind.startsWith("left") ? 0 : 1); // the accepted path lies over the others
  nodes
    .slice(1)
    .sort((a, b) => weak(a) - weak(b))
    .forEach((n) => drawn.append(edge(nodes[n.parent], n)));
  nodes.forEach((n) => {
    const text = svg("text", { x: n.x + NODE.pad, y: n.y + 16.5 });
    text.textContent = n.label;
    const title = svg("title", {});
    title.textContent = n.title;
    const box = svg("rect", { x: n.x, y: n.y, width: n.width, height: NODE.height, rx: 5 });
    const line = svg("path", { d: `M${n.x + 5} ${n.y + NODE.height - 3.5}H${n.x + n.width - 5}`, class: "mark" });
    drawn.append(svg("g", { class: `node ${n.kind}` }, title, box, line, text));
  });
  return drawn;
}

function treeInWords(round, before) {
  const kept = round.path.map((i) => JSON.stringify(round.nodes[i].text)).join(", ") || "none";
  const own =
    round.tokens.length > round.accepted
      ? ` The target's own token: ${JSON.stringify(round.texts[round.accepted])}.`
      : "";
  const size = count(round.nodes.length, "drafted token");
  return `A tree of ${size} after ${JSON.stringify(before)}. Kept: ${kept}.${own}`;
}
