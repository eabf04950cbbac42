// Building and updating elements. Names come from elsewhere: they are only ever set as text.

// Of the script that the server puts in front of this file, which reports have in common with this page.
export { Axes, niceStep, onKeys, pathOf, roundTicks, SCALES, shape };

export const byId = (id) => document.getElementById(id);

/** An element with properties and children; strings become text. */
export function make(name, properties = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in node) node[key] = value;
    else node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

/** Sets text where it differs: what is selected stays selected, and nothing is laid out anew. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Sets an attribute where it differs; `null` takes it away. */
export function mark(node, name, value) {
  if (value === null) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

/** Keeps `parent`'s children as those of `items`, in their order, reusing nodes by key. */
export function keyed(parent, items, key, create, update) {
  parent.nodes ??= new Map();
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  const seen = new Set();
  let before = parent.firstChild;
  for (const item of items) {
    const name = key(item);
    seen.add(name);
    let node = parent.nodes.get(name);
    if (!node) {
      node = create(item);
      parent.nodes.set(name, node);
    }
    update(node, item);
    if (node === before) before = before.nextSibling;
    else parent.insertBefore(node, before);
  }
  for (const [name, node] of parent.nodes) {
    if (seen.has(name)) continue;
    node.remove();
    parent.nodes.delete(name);
  }
  // A node that is moved loses the focus.
  if (focused && focused !== document.activeElement && parent.contains(focused)) focused.focus({ preventScroll: true });
}
