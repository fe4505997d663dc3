// Owns the box of output text: appends what comes as text nodes, once a frame, and follows the end
// while its reader is there.

const NODE_CHARS = 4096;
const NEAR_END_PX = 48;

export class OutputView {
  #box;
  #waiting = "";
  #text = "";
  #node = null;
  #frame = null;

  constructor(box) {
    this.#box = box;
  }

  /** The whole text. */
  get text() {
    return this.#text;
  }

  append(text) {
    if (!text) return;
    this.#text += text;
    this.#waiting += text;
    this.#frame ??= requestAnimationFrame(() => this.#paint());
  }

  /** Show exactly `text`, at once; nothing moves when it is there already. */
  replace(text) {
    if (this.#frame !== null) {
      cancelAnimationFrame(this.#frame);
      this.#paint();
    }
    if (text === this.#text) return;
    this.#node = null;
    this.#waiting = "";
    this.#text = text;
    this.#box.replaceChildren(...(text ? [text] : []));
  }

  #paint() {
    const box = this.#box;
    const isFollowing = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_END_PX;
    if (this.#node === null || this.#node.length > NODE_CHARS) {
      this.#node = document.createTextNode("");
      box.append(this.#node);
    }
    this.#node.appendData(this.#waiting);
    this.#waiting = "";
    this.#frame = null;
    if (isFollowing) box.scrollTop = box.scrollHeight;
  }
}
