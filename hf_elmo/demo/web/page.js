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
const WORDS_BESIDE = 4; // shown on each side of a neighbor
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

async function start() {
  const [data, numbers, model] = await Promise.all([
    fetchFile("data.json").then((response) => response.json()),
    fetchBytes("collection.bin"),
    fetchBytes("model.onnx"),
  ]);
  const [run, softmaxBytes] = await Promise.all([
    loadElmo(model, data.spelling), data.guesses && fetchBytes("softmax.bin"),
  ]);
  const collection = cutLayers(new Float32Array(numbers), data.numLayers, data.width);
  const softmax = data.guesses && readSoftmax(softmaxBytes, data.guesses.words.length);
  const tokenize = makeTokenizer(data.tokenizer);
  const names = collection.map((_, i) => (i ? `Layer ${i}` : "Layer 0, spelling only"));
  const showOwnUse = showMap(data, collection, names);
  let words = [], position = 0; // the sentence, and the word that is picked
  let layers = null, letters = null; // of this sentence; the word to which "Other letters" belong

  /** Compute and show everything that depends on the sentence and the picked word. */
  async function update() {
    checkWords(words);
    layers = await run(words);
    const word = words[position];
    if (word !== letters) $("letters").value = misspell(word);
    letters = word;
    makeButtons($("words"), words, (i) => { position = i; schedule(update); });
    press($("words"), position);
    $("layers").replaceChildren(...names.map((name, i) => makeNeighbors(name, words, layers, i)));
    showMix();
    if (softmax) {
      const found = guess(layers.at(-1), position, data.guesses.boundaries, softmax, NUM_GUESSES);
      $("guesses").replaceChildren(...Object.entries(found).map(([direction, numbers]) =>
        makeColumn(DIRECTIONS[direction], numbers.map((n) => make("li", {}, data.guesses.words[n])))));
    }
    showOwnUse(word, layers.map((vectors) => vectors[position]), words.join(" "));
    showMessage("");
    await showMisspelling();
  }

  async function showMisspelling() {
    const other = words.with(position, $("letters").value.replace(/\s+/gu, ""));
    const otherLayers = other[position] && await run(other);
    $("misspelt").replaceChildren(...(otherLayers ? names : []).map((name, i) =>
      makeNeighbors(`${other[position]}: ${name}`, other, otherLayers, i)));
  }

  function showMix() {
    const powers = sliders.map((slider) => Math.exp(Number(slider.value)));
    const sum = powers.reduce((a, b) => a + b);
    const weights = powers.map((power) => power / sum);
    weights.forEach((weight, i) => {
      const percent = `${Math.round(100 * weight)} %`;
      $(`share${i}`).textContent = percent;
      sliders[i].setAttribute("aria-valuetext", percent);
    });
    $("mixed").replaceChildren(...makeLines(words, layers, weights));
  }

  function makeNeighbors(title, sentence, vectors, layer) {
    const weights = names.map((_, i) => Number(i === layer));
    return makeColumn(title, makeLines(sentence, vectors, weights, layer === 0));
  }

  /** Make lines of the nearest words; each word once and without its sentence if `isAlone`. */
  function makeLines(sentence, vectors, weights, isAlone = false) {
    const own = sentence[position].toLowerCase(), text = sentence.join(" "), seen = new Set([own]);
    const lines = [];
    for (const [row, cosine] of sortByCosine(mix(vectors, position, weights), collection, weights)) {
      const [number, place] = data.places[row], other = data.sentences[number];
      const word = other[place].toLowerCase();
      if (other.join(" ") === text || (isAlone && seen.has(word))) continue;
      seen.add(word);
      lines.push(makeLine(other, place, cosine, isAlone ? 0 : WORDS_BESIDE));
      if (lines.length === NUM_NEIGHBORS) break;
    }
    return lines;
  }

  const sliders = names.map((name, i) => {
    const slider = make("input", { type: "range", id: `mix${i}`, min: -4, max: 4, step: 0.1, value: 0 });
    slider.addEventListener("input", showMix);
    const output = make("output", { id: `share${i}`, for: `mix${i}` });
    $("sliders").append(make("div", { class: "slider" }, make("label", { for: `mix${i}` }, name), slider, output));
    return slider;
  });

  /** Read the sentence; pick the word at the cursor. */
  function read() {
    const text = $("text").value.slice(0, MAX_TEXT);
    const numBefore = tokenize(text.slice(0, $("text").selectionStart)).length;
    words = tokenize(text);
    position = Math.max(0, Math.min(words.length, numBefore) - 1);
    while (position > 0 && !/\p{L}/u.test(words[position])) position--; // no punctuation
  }

  function readExample() {
    const option = $("example").selectedOptions[0];
    $("text").value = option.textContent;
    read();
    position = words.indexOf(option.value);
  }

  $("text").addEventListener("input", () => { read(); schedule(update, TYPING_PAUSE); });
  $("text").addEventListener("click", () => { read(); schedule(update); });
  $("example").addEventListener("change", () => { readExample(); schedule(update); });
  $("letters").addEventListener("input", () => schedule(showMisspelling, TYPING_PAUSE));
  $("model").textContent = data.model;
  $("count").textContent = data.sentences.length;
  $("guessing").hidden = !softmax;
  showEntities(data.entities);
  readExample();
  await update();
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

start().catch(fail);
