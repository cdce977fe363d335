// The map of senses: uses of a word as points in a plane, layer by layer.
import { $, draw, make, makeButtons, press } from "./dom.js";
import { project } from "./vectors.js";

const SHAPES = [
  "M-.05 0a.05 .05 0 1 0 .1 0a.05 .05 0 1 0 -.1 0", // circle
  "M-.045 -.045h.09v.09h-.09z", // square
  "M0 -.06l.055 .1h-.11z", // triangle
];
const OWN_SHAPE = "M0 -.08l.08 .08l-.08 .08l-.08 -.08z"; // diamond

/**
 * Show the map, and return a function that adds the user's word to it.
 *
 * @param data What `make_data` writes.
 * @param collection `collection[layer][row]`, vectors of the words in `data.places`.
 * @param names Names of the layers.
 */
export function showMap(data, collection, names) {
  let map = data.maps[0], level = names.length - 1, own = null;

  function drawMap() {
    press($("mapped"), data.maps.indexOf(map));
    press($("level"), level);
    const senses = map.uses.map((row) => data.senses[data.places[row][0]]);
    const kinds = [...new Set(senses)];
    const points = map.uses.map((row, i) => {
      const kind = kinds.indexOf(senses[i]);
      const text = data.sentences[data.places[row][0]].join(" ");
      return drawPoint(collection.map((layer) => layer[row]), kind, `${senses[i]}: ${text}`);
    });
    if (own?.word === map.word) points.push(drawPoint(own.layers, null, `yours: ${own.text}`));
    const height = 0.1 + Math.max(...points.flatMap((point) => point.points.map(([, y]) => Math.abs(y))));
    $("plane").setAttribute("viewBox", `-1.1 ${-height} 2.2 ${2 * height}`);
    $("plane").replaceChildren(...points);
    $("plane").setAttribute("aria-label", `Uses of “${map.word}” in the plane`);
    const entries = kinds.map((name, kind) => [kind, name]);
    if (own?.word === map.word) entries.push([null, "your sentence"]);
    $("legend").replaceChildren(...entries.map(([kind, name]) => make("span", {},
      draw("svg", { viewBox: "-.09 -.09 .18 .18", "aria-hidden": true }, drawShape(kind)), ` ${name}`)));
  }

  function drawShape(kind) {
    return kind === null
      ? draw("path", { d: OWN_SHAPE, fill: "var(--ink)" })
      : draw("path", { d: SHAPES[kind % SHAPES.length], fill: `var(--sense-${kind % SHAPES.length})` });
  }

  function drawPoint(layers, kind, text) {
    const point = drawShape(kind);
    const label = { class: "point", tabindex: 0, role: "img", "aria-label": text };
    for (const [name, value] of Object.entries(label)) point.setAttribute(name, value);
    // A user's word may be farther away than all others: keep it inside of the frame.
    point.points = layers.map((vector, i) => project(vector, map.origins[i], map.axes[i])
      .map((value) => Math.max(-1, Math.min(1, value))));
    move(point);
    for (const event of ["focus", "mouseenter", "click"]) {
      point.addEventListener(event, () => { $("use").textContent = text; });
    }
    return point;
  }

  function move(point) {
    const [x, y] = point.points[level];
    point.style.transform = `translate(${x}px, ${y}px)`;
  }

  makeButtons($("mapped"), data.maps.map(({ word }) => word), (i) => { map = data.maps[i]; drawMap(); });
  makeButtons($("level"), names, (i) => {
    level = i;
    press($("level"), level);
    [...$("plane").children].forEach(move);
  });
  drawMap();

  return (word, layers, text) => {
    own = { word, layers, text };
    map = data.maps.find((other) => other.word === word) ?? map;
    drawMap();
  };
}
