// The context as a strip: what a round's draft read of it, and fainter what the rounds before it read.
const FADE = 0.94; // of what earlier rounds read, from one round to the next
const REMEMBERED = 120; // rounds after which nothing of it is seen any more

export class Strip {
  constructor(canvas, words, reads) {
    [this.canvas, this.words, this.reads] = [canvas, words, reads];
    [this.trace, this.lane] = [null, null];
    this.clear();
    new ResizeObserver(() => this.resize()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    canvas.addEventListener("pointermove", (e) => this.point(Math.floor((e.offsetX / canvas.clientWidth) * this.bins)));
    canvas.addEventListener("pointerleave", () => this.point(null));
    canvas.addEventListener("focus", () => this.point(this.bin ?? 0));
    canvas.addEventListener("blur", () => this.point(null));
    canvas.addEventListener("keydown", (e) => this.key(e));
  }

  begin(trace, lane) {
    [this.trace, this.lane] = [trace, lane];
    this.clear();
    this.words.textContent = "";
    this.draw();
  }

  clear() {
    this.current = -1; // the round that is shown
    this.bin = null; // the bin under the pointer
    [this.heat, this.heatAt] = [[], -1];
  }

  get bins() {
    return this.lane?.rounds.find((r) => r.shown)?.shown.length ?? Math.min(256, this.trace?.slots ?? 1);
  }

  resize() {
    const { canvas } = this;
    const scale = devicePixelRatio || 1;
    [canvas.width, canvas.height] = [Math.round(canvas.clientWidth * scale), Math.round(canvas.clientHeight * scale)];
    this.draw();
  }

  // i: the round that is shown; -1: none.
  show(i) {
    if (i === this.current) return;
    this.current = i;
    this.warm(i);
    this.draw();
  }

  // Sums up what the rounds before round i read.
  warm(i) {
    const from = i > this.heatAt && i - this.heatAt <= REMEMBERED ? this.heatAt : Math.max(0, i - REMEMBERED);
    if (from !== this.heatAt || this.heatAt < 0) this.heat = [];
    for (let r = Math.max(0, from); r < i; r++) {
      const shown = this.lane.rounds[r].shown;
      if (!shown) continue;
      for (let b = 0; b < shown.length; b++) this.heat[b] = (this.heat[b] ?? 0) * FADE + shown[b] * (1 - FADE);
    }
    this.heatAt = Math.max(0, i);
  }

  // The slots of a bin: [first, one past the last].
  range(bin) {
    const first = (b) => Math.ceil((b * this.trace.slots) / this.bins);
    return [first(bin), Math.max(first(bin) + 1, first(bin + 1))];
  }

  draw() {
    if (!this.lane || !this.canvas.width) return;
    const [pen, { width, height }, style] = [this.canvas.getContext("2d"), this.canvas, getComputedStyle(this.canvas)];
    const color = (name) => style.getPropertyValue(name).trim();
    const round = this.lane.rounds[this.current];
    const [n, slots, scale] = [this.bins, this.trace.slots, devicePixelRatio || 1];
    const base = height - Math.round(5 * scale);
    const x = (slot) => Math.round((slot / slots) * width);
    pen.clearRect(0, 0, width, height);
    pen.fillStyle = color("--track");
    pen.fillRect(0, 0, width, base);
    const bars = (values, fill) => {
      pen.fillStyle = fill;
      values?.forEach((v, b) => {
        const [left, right] = [Math.round((b / n) * width), Math.round(((b + 1) / n) * width)];
        const high = v ? Math.max(2 * scale, (v / 100) * base) : 0;
        pen.fillRect(left, base - high, Math.max(1, right - left), high);
      });
    };
    bars(this.heat, color("--heat"));
    bars(round?.shown, color("--lit"));
    const length = this.length();
    pen.fillStyle = color("--muted");
    pen.fillRect(0, base + 2 * scale, x(this.trace.prompt_tokens), 2 * scale);
    pen.fillStyle = color("--ink");
    pen.fillRect(
      x(this.trace.prompt_tokens),
      base + 2 * scale,
      Math.max(0, x(length) - x(this.trace.prompt_tokens)),
      2 * scale,
    );
    pen.fillRect(x(this.trace.prompt_tokens) - Math.round(scale / 2), 0, Math.max(1, Math.round(scale)), height);
    if (this.bin !== null) {
      pen.strokeStyle = color("--ink");
      pen.lineWidth = scale;
      pen.strokeRect(((this.bin + 0.5) / n) * width - 3 * scale, scale, 6 * scale, base - scale);
    }
    this.write(round);
  }

  // Tokens in the context when the shown round began.
  length() {
    return this.trace.prompt_tokens + this.lane.tokens[Math.max(0, this.current)];
  }

  share(round) {
    const read = round.shown.reduce((sum, percent, b) => sum + (percent / 100) * (this.trace.slots / this.bins), 0);
    return Math.min(100, (100 * read) / Math.max(1, this.length()));
  }

  write(round) {
    let said = "";
    if (round && !round.nodes.length) said = "no draft in this round";
    else if (round && !round.shown) said = "its drafts read no selection of the context";
    else if (round) {
      const share = this.share(round);
      said = `reads ${share < 10 ? share.toFixed(1) : Math.round(share)}% of the context`;
    }
    this.reads.textContent = said;
    const prompt = this.trace.prompt_tokens.toLocaleString("en");
    this.words.textContent =
      this.bin === null ? `${prompt} tokens of prompt, then the answer` : this.placeInWords(round);
    const now = this.bin ?? 0;
    for (const [name, value] of [
      ["valuemin", 0],
      ["valuemax", this.bins - 1],
      ["valuenow", now],
      ["valuetext", this.placeInWords(round, now)],
    ])
      this.canvas.setAttribute(`aria-${name}`, value);
  }

  placeInWords(round, bin = this.bin) {
    const [from, to] = this.range(bin).map((x) => Math.min(x, this.trace.slots));
    const part =
      from >= this.trace.prompt_tokens ? "answer" : to > this.trace.prompt_tokens ? "prompt and answer" : "prompt";
    const read = round?.shown ? `; read to ${round.shown[bin] ?? 0}%` : "";
    return `tokens ${from.toLocaleString("en")} to ${(to - 1).toLocaleString("en")} (${part})${read}`;
  }

  point(bin) {
    if (!this.lane) return;
    this.bin = bin === null ? null : Math.max(0, Math.min(this.bins - 1, bin));
    this.draw();
  }

  key(e) {
    const step = {
      ArrowLeft: -1,
      ArrowDown: -1,
      ArrowRight: 1,
      ArrowUp: 1,
      PageDown: -16,
      PageUp: 16,
      Home: -1e9,
      End: 1e9,
    }[e.key];
    if (step === undefined) return;
    e.preventDefault();
    this.point((this.bin ?? 0) + step);
  }
}
