// Texts and numbers as the page shows them.

// Control characters made visible; the text itself is kept.
export function visible(text) {
  return text === ""
    ? "·"
    : text
        .replaceAll("\n", "↵")
        .replaceAll("\t", "⇥")
        .replace(/[\u0000-\u001f\u007f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g, "·");
}

export const count = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
export const seconds = (s) => `${s.toFixed(2)} s`;
export const sentence = (text) => (/[.!?]$/.test(text) ? text : `${text}.`);
