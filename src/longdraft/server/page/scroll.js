// Lanes scroll together: all stand at their ends, or at the same token. Each says whether there is more to see.
const NEAR = 24; // pixels from the end that count as the end

export class Scroll {
  constructor(lanes) {
    this.lanes = lanes;
    this.following = true; // whether new tokens come into view
    this.placed = new Map(); // where each lane was put: any other place is the reader's choice
    for (const lane of lanes) lane.box.addEventListener("scroll", () => this.scrolled(lane));
  }

  // Shows the newest tokens of all lanes, unless the reader has scrolled to others.
  follow() {
    for (const lane of this.lanes) {
      if (this.following) this.put(lane, lane.box.scrollHeight);
      sayMore(lane);
    }
  }

  // Shows a token in all lanes.
  to(token) {
    this.following = false;
    for (const lane of this.lanes) this.put(lane, lane.topOf(token) - lane.box.clientHeight / 3);
  }

  put(lane, top) {
    lane.box.scrollTop = top;
    this.placed.set(lane, lane.box.scrollTop);
  }

  scrolled(lane) {
    sayMore(lane);
    if (Math.abs(lane.box.scrollTop - (this.placed.get(lane) ?? -1)) < 2) return;
    this.placed.set(lane, lane.box.scrollTop);
    this.following = below(lane.box) < NEAR;
    const token = lane.tokenAtTop();
    for (const other of this.lanes) {
      if (other !== lane) this.put(other, this.following ? other.box.scrollHeight : other.topOf(token));
    }
  }
}

const below = (box) => box.scrollHeight - box.scrollTop - box.clientHeight;

function sayMore({ box, more }) {
  const [up, down] = [box.scrollTop > NEAR, below(box) > NEAR];
  const text = up && down ? "↑ more ↓" : up ? "↑ more" : down ? "more ↓" : "";
  if (more.textContent !== text) more.textContent = text;
  box.classList.toggle("up", up);
  box.classList.toggle("down", down);
}
