// The page: what the user types, and what is shown of it.
import { $, make, makeButtons, makeColumn, press } from "./dom.js";
import { cutLayers, loadElmo } from "./elmo.js";
import { showMap } from "./map.js";
import { makeTokenizer } from "./tokenizer.js";
import { guess, misspell, mix, readSoftmax, sortByCosine } from "./vectors.js";

const MAX_TEXT = 5000; // characters that are read, far more than a sentence has
const MAX_WORDS = 100; // of a sentence
const MAX_CHARACTERS = 100; // of a word
const NUM_NEIGHBORS = 6;
const NUM_GUESSES = 8;
const WORDS_BESIDE = 4; // shown on each side of a neighbour
const TYPING_PAUSE = 150; // milliseconds
const DIRECTIONS = {
  forward: "From the words before", backward: "From the words after", both: "From both sides",
};

/** Fetch a file of the page's folder. */
async function fetchFile(name) {
  const response = await fetch(name);
  if (!response.ok) {
    throw new Error(`Expected ${name} in the page's folder, got ${response.status}. Build the page again.`);
  }
  return response;
}

const fetchBytes = async (name) => (await fetchFile(name)).arrayBuffer();

/** Load the model and what was computed when the page was built. */
async function loadDemo() {
  const [data, numbers, model] = await Promise.all([
    fetchFile("data.json").then((response) => response.json()),
    fetchBytes("collection.bin"),
    fetchBytes("model.onnx"),
  ]);
  const [run, softmax] = await Promise.all([
    loadElmo(model, data.spelling), data.guesses && fetchBytes("softmax.bin"),
  ]);
  return {
    data,
    run,
    collection: cutLayers(new Float32Array(numbers), data.numLayers, data.width),
    softmax: data.guesses && readSoftmax(softmax, data.guesses.words.length),
    tokenize: makeTokenizer(data.tokenizer),
  };
}

class Page {
  typed = { words: [], position: 0 }; // what the user typed, and the word at the cursor
  shown = null; // the same with the layers, once they are computed

  constructor(demo) {
    Object.assign(this, demo);
    this.names = this.collection.map((_, i) => (i ? `Layer ${i}` : "Layer 0, spelling only"));
    this.sliders = this.names.map((name, i) => this.addSlider(name, i));
    this.showOwnUse = showMap(this.data, this.collection, this.names);
    $("model").textContent = this.data.model;
    $("count").textContent = this.data.sentences.length;
    $("guessing").hidden = !this.softmax;
    showEntities(this.data.entities);
    $("text").addEventListener("input", () => { this.read(); this.update(TYPING_PAUSE); });
    $("text").addEventListener("click", () => { this.read(); this.update(); });
    $("example").addEventListener("change", () => this.readExample());
    $("letters").addEventListener("input", () => schedule(() => this.showMisspelling(), TYPING_PAUSE));
    this.readExample();
  }

  addSlider(name, i) {
    const slider = make("input", { type: "range", id: `mix${i}`, min: -4, max: 4, step: 0.1, value: 0 });
    slider.addEventListener("input", () => this.showMix());
    const share = make("output", { id: `share${i}`, for: `mix${i}` });
    $("sliders").append(make("div", { class: "slider" }, make("label", { for: `mix${i}` }, name), slider, share));
    return slider;
  }

  readExample() {
    const option = $("example").selectedOptions[0];
    $("text").value = option.textContent;
    this.read();
    this.typed.position = this.typed.words.indexOf(option.value);
    this.update();
  }

  /** Read the sentence, and pick the word at the cursor or the last one before it. */
  read() {
    const text = $("text").value.slice(0, MAX_TEXT), words = this.tokenize(text);
    const numBefore = this.tokenize(text.slice(0, $("text").selectionStart)).length;
    let position = Math.max(0, Math.min(words.length, numBefore) - 1);
    while (position > 0 && !/\p{L}/u.test(words[position])) position--; // no punctuation
    this.typed = { words, position };
  }

  update(delay) {
    schedule(() => this.show(), delay);
  }

  /** Compute and show everything that depends on the sentence and the picked word. */
  async show() {
    const { words, position } = this.typed;
    checkWords(words);
    const layers = await this.run(words);
    const before = this.shown;
    this.shown = { words, position, layers };
    if (words !== before?.words) this.showWords(words);
    press($("words"), position);
    $("layers").replaceChildren(...this.makeColumns("", this.shown));
    this.showMix();
    if (this.softmax) this.showGuesses(layers.at(-1), position);
    this.showOwnUse(words[position], layers.map((layer) => layer[position]), words.join(" "));
    showMessage("");
    if (words[position] !== before?.words[before.position]) $("letters").value = misspell(words[position]);
    await this.showMisspelling();
  }

  showWords(words) {
    makeButtons($("words"), words, (position) => { this.typed = { words, position }; this.update(); });
  }

  showMix() {
    const powers = this.sliders.map((slider) => Math.exp(Number(slider.value)));
    const sum = powers.reduce((a, b) => a + b);
    const weights = powers.map((power) => power / sum);
    weights.forEach((weight, i) => {
      const percent = `${Math.round(100 * weight)} %`;
      $(`share${i}`).textContent = percent;
      this.sliders[i].setAttribute("aria-valuetext", percent);
    });
    $("mixed").replaceChildren(...this.makeLines(this.shown, weights));
  }

  async showMisspelling() {
    const { words, position } = this.shown, letters = $("letters").value.replace(/\s+/gu, "");
    if (letters === "") return $("misspelt").replaceChildren();
    const other = words.with(position, letters), layers = await this.run(other);
    $("misspelt").replaceChildren(...this.makeColumns(`${letters}: `, { words: other, position, layers }));
  }

  showGuesses(topLayer, position) {
    const { words, boundaries } = this.data.guesses;
    const found = guess(topLayer, position, boundaries, this.softmax, NUM_GUESSES);
    $("guesses").replaceChildren(...Object.entries(found).map(([direction, numbers]) =>
      makeColumn(DIRECTIONS[direction], numbers.map((number) => make("li", {}, words[number])))));
  }

  /** Make a column of the nearest words for each layer. */
  makeColumns(title, query) {
    return this.names.map((name, layer) => {
      const weights = this.names.map((_, i) => Number(i === layer));
      return makeColumn(title + name, this.makeLines(query, weights, layer === 0));
    });
  }

  /** Make lines of the nearest words; each word once and without its sentence if `isAlone`. */
  makeLines({ words, position, layers }, weights, isAlone = false) {
    const text = words.join(" "), seen = new Set([words[position].toLowerCase()]), lines = [];
    for (const [row, cosine] of sortByCosine(mix(layers, position, weights), this.collection, weights)) {
      const [number, place] = this.data.places[row], other = this.data.sentences[number];
      const word = other[place].toLowerCase();
      if (other.join(" ") === text || (isAlone && seen.has(word))) continue;
      seen.add(word);
      lines.push(makeLine(other, place, cosine, isAlone ? 0 : WORDS_BESIDE));
      if (lines.length === NUM_NEIGHBORS) break;
    }
    return lines;
  }
}

function checkWords(words) {
  if (words.length === 0) throw new Error("Type a sentence.");
  if (words.length > MAX_WORDS) {
    throw new Error(`Expected a sentence of at most ${MAX_WORDS} words, got ${words.length}.`);
  }
  const longest = Math.max(...words.map((word) => word.length));
  if (longest > MAX_CHARACTERS) {
    throw new Error(`Expected words of at most ${MAX_CHARACTERS} characters, got one of ${longest}.`);
  }
}

function makeLine(words, position, cosine, numBeside) {
  const start = Math.max(0, position - numBeside), end = position + numBeside + 1;
  const line = make("li", {}, make("small", {}, cosine.toFixed(2)));
  if (numBeside && start > 0) line.append("… ");
  words.slice(start, end).forEach((word, i) => {
    line.append(start + i === position ? make("mark", {}, word) : word, " ");
  });
  if (numBeside && end < words.length) line.append("…");
  return line;
}

function showEntities(pipelines) {
  $("entity-section").hidden = pipelines.length === 0;
  $("entity-columns").append(...pipelines.map(({ pipeline, sentences }) =>
    makeColumn(pipeline, sentences.map(({ text, entities }) => {
      const line = make("li", { class: "entity" });
      let last = 0;
      for (const [start, end, label] of entities) {
        line.append(text.slice(last, start), make("mark", {}, text.slice(start, end)), " ", make("small", {}, label));
        last = end;
      }
      line.append(text.slice(last));
      return line;
    }))));
}

function showMessage(text) {
  $("message").textContent = text;
  $("message").className = text ? "error" : "";
  $("results").hidden = text !== "";
}

function fail(error) {
  $("words").replaceChildren();
  showMessage(error.message);
}

// One task at a time; of several that wait, the newest.
let timer, queue = Promise.resolve();
function schedule(task, delay = 0) {
  clearTimeout(timer);
  timer = setTimeout(() => { queue = queue.then(task).catch(fail); }, delay);
}

loadDemo().then((demo) => new Page(demo)).catch(fail);
