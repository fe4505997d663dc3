// Owns the few things that all pages do with the document. Text enters it as text, never as markup.

export function byId(id) {
  const node = document.getElementById(id);
  if (node === null) throw new Error(`the page has no #${id}`);
  return node;
}

/** A new element with a class and children; strings among them become text. */
export function element(tag, className, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children.filter((child) => child !== null));
  return node;
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function show(node, isShown) {
  node.hidden = !isShown;
}

/** Replace what a `<dl>` holds by [name, value] pairs; a value is text or a node. */
export function fillFacts(list, facts) {
  list.replaceChildren(
    ...facts.map(([name, value]) => element("div", "", element("dt", "", name), element("dd", "", value))),
  );
}

/** Tell those who hear the page instead of seeing it. */
export function announce(text) {
  setText(byId("announce"), text);
}

/** Let `button` copy what `text()` returns, and say so for a moment. */
export function makeCopyButton(button, text) {
  const label = button.textContent;
  let timer = null;
  button.addEventListener("click", async () => {
    const isCopied = await copy(text());
    setText(button, isCopied ? "Copied" : "Press Ctrl+C");
    announce(isCopied ? "Copied" : "Could not copy");
    clearTimeout(timer);
    timer = setTimeout(() => setText(button, label), 1600);
  });
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text); // no clipboard on plain http off this machine
  }
}

function copyBySelection(text) {
  const field = element("textarea", "visually-hidden");
  field.value = text;
  document.body.append(field);
  const focused = document.activeElement;
  field.select();
  let isCopied = false;
  try {
    isCopied = document.execCommand("copy");
  } catch {
    // The label tells how.
  }
  field.remove();
  focused?.focus();
  return isCopied;
}
