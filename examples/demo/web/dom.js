// Elements of the page.

export const $ = (id) => document.getElementById(id);

/** Make an element of HTML with text and other elements in it. */
export function make(tag, attributes, ...content) {
  return fill(document.createElement(tag), attributes, content);
}

/** Make an element of SVG. */
export function draw(tag, attributes, ...content) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, content);
}

function fill(element, attributes, content) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...content);
  return element;
}

/** Make a button for each name in a group; `act` gets the number of the one that is clicked. */
export function makeButtons(group, names, act) {
  group.replaceChildren(...names.map((name, i) => {
    const button = make("button", { type: "button", "aria-pressed": false }, name);
    button.addEventListener("click", () => act(i));
    return button;
  }));
}

/** Mark one button of a group as the one that is chosen. */
export function press(group, chosen) {
  [...group.children].forEach((button, i) => button.setAttribute("aria-pressed", i === chosen));
}

/** Make a column with a title and lines. */
export function makeColumn(title, lines) {
  return make("div", {}, make("h3", {}, title), make("ol", {}, ...lines));
}
