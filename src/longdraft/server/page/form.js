// The form: what to run, checked before it is sent.
import { $, element } from "./dom.js";
import { count } from "./text.js";
import { isText, isWhole } from "./trace.js";

export const NUMBERS = {
  temperature: "Temperature",
  top_p: "Top-p",
  top_k: "Top-k",
  seed: "Seed",
  max_tokens: "New tokens",
};
let ranges = {}; // of these, by the server
const LONGEST_TEXT = 16 << 20; // of a document, in bytes

export class Wrong extends Error {
  constructor(message, field) {
    super(message);
    this.field = field;
  }
}

// A group of options for each label, in the order of their first methods.
function grouped(methods) {
  const groups = new Map();
  for (const m of methods) {
    const [label, option] = [m.label ?? "other methods", element("option", "", m.name)];
    option.value = m.name;
    if (!groups.has(label)) groups.set(label, Object.assign(element("optgroup"), { label }));
    groups.get(label).append(option);
  }
  return [...groups.values()];
}

export function fillMethods(answer) {
  ranges = answer.parameters;
  const picker = $("method");
  picker.replaceChildren(...grouped(answer.methods));
  picker.value = answer.methods.some((m) => m.name === answer.default) ? answer.default : answer.methods[0].name;
  picker.disabled = false;
  picker.onchange = () => fillOptions(answer.methods.find((m) => m.name === picker.value));
  picker.onchange();
  const room = isWhole(answer.context) ? `, ${answer.context.toLocaleString("en")} tokens of context` : "";
  $("server").textContent = `${isText(answer.model) ? answer.model : "model"}${room}`;
}

function fillOptions(method) {
  $("about").textContent = method.about ?? "";
  const options = Object.entries(method.options ?? {});
  $("more").hidden = !options.length;
  $("more").firstElementChild.textContent = `Options of ${method.name}`;
  $("options").replaceChildren(
    ...options.flatMap(([name, option]) => {
      const [tag, input] = [element("label", "", name), element("input")];
      input.id = `option-${name}`;
      tag.htmlFor = input.id;
      input.dataset.option = name;
      input.placeholder = String(option?.default ?? "");
      const hint = element("p", "hint", isText(option?.about) ? option.about : "");
      hint.id = `${input.id}-hint`;
      input.setAttribute("aria-describedby", hint.id);
      return [tag, input, hint];
    }),
  );
}

function inRange(value, { whole, low, high, above }) {
  return value >= low && value <= high && (!whole || Number.isInteger(value)) && !(above && value === low);
}

function number(id) {
  const text = $(id).value.trim().replace(",", ".");
  const value = Number(text);
  if (text === "" || !inRange(value, ranges[id]))
    throw new Wrong(`${NUMBERS[id]} must be ${ranges[id].allowed}.`, $(id));
  return value;
}

export function readForm() {
  document.querySelectorAll("#form [aria-invalid]").forEach((field) => field.removeAttribute("aria-invalid"));
  const [text, prompt] = [$("document").value, $("prompt").value];
  if (!text.trim() && !prompt.trim()) throw new Wrong("Give a prompt, a document or both.", $("prompt"));
  const options = {};
  document.querySelectorAll("#options input").forEach((input) => {
    if (input.value.trim()) options[input.dataset.option] = input.value.trim();
  });
  const numbers = Object.fromEntries(Object.keys(NUMBERS).map((id) => [id, number(id)]));
  return { document: text, prompt, method: $("method").value, options, ...numbers };
}

export function showProblem(message, field = null) {
  $("problem").textContent = message;
  $("problem").hidden = !message;
  if (!field) return;
  field.setAttribute("aria-invalid", "true");
  field.closest("details")?.setAttribute("open", "");
  field.focus();
}

// The field that an error of the server names, such as "top_p" or "options.gamma".
export function fieldOf(param) {
  const name = (param ?? "").split(".").pop();
  const known = ["document", "prompt", "method", ...Object.keys(NUMBERS)];
  return known.includes(name)
    ? $(name)
    : ([...document.querySelectorAll("#options input")].find((x) => x.dataset.option === name) ?? null);
}

function showSize() {
  $("size").textContent = count($("document").value.length, "character");
}

export async function openText(file) {
  if (file.size > LONGEST_TEXT) return showProblem(`${file.name} is too large: ${LONGEST_TEXT >> 20} MB at most.`);
  const text = await file.text();
  if (text.includes("\0")) return showProblem(`${file.name} is not a text file.`);
  $("document").value = text;
  showProblem("");
  showSize();
}

export function wireForm() {
  $("document").addEventListener("input", showSize);
  $("open").addEventListener("click", () => $("file").click());
  $("file").addEventListener("change", () => {
    if ($("file").files[0]) openText($("file").files[0]);
    $("file").value = "";
  });
  showSize();
}
