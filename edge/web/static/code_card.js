// Owns a card of code in several languages: tabs (WAI-ARIA's pattern: arrows move), and a copy button.

import { element, makeCopyButton, setText } from "./dom.js";

let cards = 0;

export class CodeCard {
  #tabs;
  #panel;
  #snippets = [];
  #chosen = 0;
  #id;

  constructor(card) {
    this.#id = `code-${(cards += 1)}`;
    this.#tabs = element("div", "tabs");
    this.#tabs.setAttribute("role", "tablist");
    this.#tabs.setAttribute("aria-label", "Language");
    this.#panel = element("pre", "code");
    this.#panel.id = `${this.#id}-panel`;
    this.#panel.tabIndex = 0;
    this.#panel.setAttribute("role", "tabpanel");
    const copy = element("button", "button quiet", "Copy");
    copy.type = "button";
    makeCopyButton(copy, () => this.#snippets[this.#chosen]?.code ?? "");
    card.append(element("div", "code-head", this.#tabs, copy), this.#panel);
    this.#tabs.addEventListener("keydown", (event) => this.#move(event));
  }

  /** Show these: a list of `{name, code}`. The chosen tab stays chosen. */
  show(snippets) {
    const isSame = snippets.map((s) => s.name).join() === this.#snippets.map((s) => s.name).join();
    this.#snippets = snippets;
    if (!isSame) this.#buildTabs();
    this.#choose(Math.min(this.#chosen, snippets.length - 1));
  }

  #buildTabs() {
    this.#tabs.replaceChildren(
      ...this.#snippets.map(({ name }, index) => {
        const tab = element("button", "tab", name);
        tab.type = "button";
        tab.id = `${this.#id}-tab-${index}`;
        tab.setAttribute("role", "tab");
        tab.setAttribute("aria-controls", this.#panel.id);
        tab.addEventListener("click", () => this.#choose(index));
        return tab;
      }),
    );
  }

  #choose(index) {
    this.#chosen = index;
    [...this.#tabs.children].forEach((tab, at) => {
      tab.setAttribute("aria-selected", String(at === index));
      tab.tabIndex = at === index ? 0 : -1;
    });
    this.#panel.setAttribute("aria-labelledby", `${this.#id}-tab-${index}`);
    setText(this.#panel, this.#snippets[index].code);
  }

  #move(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const count = this.#snippets.length;
    this.#choose((this.#chosen + step + count) % count);
    this.#tabs.children[this.#chosen].focus();
  }
}
