// What the pointer, the keyboard and a dropped file do.
import { $ } from "./dom.js";
import { openText } from "./form.js";
import { controls, endOf, load, save, state, wake } from "./page.js";

function placeOf(target) {
  const round = target.closest?.(".round");
  const root = target.closest?.(".lane");
  const lane = state.lanes.findIndex((x) => x.root === root);
  return round && lane >= 0 ? { lane, i: Number(round.dataset.round) } : null;
}

function pointTo(place) {
  state.pointed = place;
  wake();
}

function pin(place) {
  const old = state.pinned;
  state.pinned = old && place && old.lane === place.lane && old.i === place.i ? null : place;
  document.querySelectorAll('.round[aria-selected="true"]').forEach((x) => x.setAttribute("aria-selected", "false"));
  if (state.pinned) state.lanes[place.lane].group(place.i).setAttribute("aria-selected", "true");
  state.drawn = null;
  wake();
}

function roundKey(e) {
  const place = placeOf(e.target);
  if (!place) return;
  const lane = state.lanes[place.lane];
  const to = {
    ArrowLeft: place.i - 1,
    ArrowUp: place.i - 1,
    ArrowRight: place.i + 1,
    ArrowDown: place.i + 1,
    PageUp: place.i - 10,
    PageDown: place.i + 10,
    Home: 0,
    End: lane.shown - 1,
  }[e.key];
  if (to !== undefined) lane.focus(to);
  else if (e.key === "Enter" || e.key === " ") pin(place);
  else return;
  e.preventDefault();
}

export function wireLanes() {
  const lanes = $("lanes");
  lanes.addEventListener("pointerover", (e) => pointTo(placeOf(e.target) ?? placeOf(document.activeElement)));
  lanes.addEventListener("pointerleave", () => pointTo(placeOf(document.activeElement)));
  lanes.addEventListener("focusin", (e) => placeOf(e.target) && pointTo(placeOf(e.target)));
  lanes.addEventListener("focusout", () => pointTo(null));
  lanes.addEventListener("click", (e) => placeOf(e.target) && pin(placeOf(e.target)));
  lanes.addEventListener("keydown", roundKey);
  $("unpin").addEventListener("click", () => pin(null));
  document.addEventListener("keydown", (e) => e.key === "Escape" && state.pinned && pin(null));
  $("rejected").addEventListener("change", () => {
    $("lanes").classList.toggle("kept-only", !$("rejected").checked);
    state.scroll?.follow();
  });
}

export function wireReplay() {
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

export function wireDrop() {
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
