// Long lists: only the rows in sight are in the document, so that ten thousand cost what thirty do.

import { el } from "./text.js";

const AROUND = 6; // rows kept above and below those in sight
const MAX_PRINTED = 2000;

export class Rows {
  // box: the element that scrolls; height: of a row, in px; draw(index): a row's element.
  constructor(box, height, draw) {
    Object.assign(this, { box, height, draw, length: 0, first: 0, last: 0, all: false });
    this.inside = el("div", { class: "inside", role: "presentation" });
    box.replaceChildren(this.inside);
    box.addEventListener("scroll", () => this.fill(), { passive: true });
    new ResizeObserver(() => this.fill()).observe(box);
    addEventListener("beforeprint", () => this.expand(true));
    addEventListener("afterprint", () => this.expand(false));
  }

  show(length) {
    this.length = length;
    this.inside.style.height = `${length * this.height}px`;
    this.refresh();
  }

  refresh() {
    this.first = this.last = -1;
    this.fill();
  }

  expand(all) {
    this.all = all;
    this.refresh();
  }

  fill() {
    const { scrollTop, clientHeight } = this.box;
    let first = Math.max(0, Math.floor(scrollTop / this.height) - AROUND);
    let last = Math.min(this.length, Math.ceil((scrollTop + (clientHeight || 800)) / this.height) + AROUND);
    if (this.all) [first, last] = [0, Math.min(this.length, MAX_PRINTED)];
    if (first === this.first && last === this.last) return;
    [this.first, this.last] = [first, last];
    const rows = [];
    for (let index = first; index < last; index++) {
      const row = this.draw(index);
      row.style.top = `${index * this.height}px`;
      row.style.height = `${this.height}px`;
      rows.push(row);
    }
    this.inside.replaceChildren(...rows);
  }

  reveal(index) {
    const top = index * this.height;
    const { scrollTop, clientHeight } = this.box;
    if (top < scrollTop) this.box.scrollTop = top;
    else if (top + this.height > scrollTop + clientHeight) this.box.scrollTop = top + this.height - clientHeight;
    this.refresh();
  }
}
