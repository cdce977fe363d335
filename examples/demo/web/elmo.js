// The biLM: words in, layers out.
import * as ort from "./onnxruntime.js";

ort.env.wasm.numThreads = 1; // more need a host that isolates the page from other sites

/** Spell words as rows of character ids: word start, UTF-8 bytes + 1, word end, padding. */
export function spell(words, { numCells, wordStart, wordEnd, padding, boundaries }) {
  const ids = new BigInt64Array(words.length * numCells).fill(BigInt(padding));
  words.forEach((word, row) => {
    const bytes = new TextEncoder().encode(word.replace(/\p{Surrogate}/gu, ""));
    const characters = Object.hasOwn(boundaries, word)
      ? [boundaries[word]]
      : Array.from(bytes.subarray(0, numCells - 2), (byte) => byte + 1);
    ids.set([wordStart, ...characters, wordEnd].map(BigInt), row * numCells);
  });
  return ids;
}

/** Cut numbers into layers, and these into vectors: `layers[layer][row]`. */
export function cutLayers(numbers, numLayers, width) {
  const numRows = numbers.length / numLayers / width;
  return Array.from({ length: numLayers }, (_, layer) =>
    Array.from({ length: numRows }, (_, row) => {
      const start = (layer * numRows + row) * width;
      return numbers.subarray(start, start + width);
    }));
}

/** Return a function that computes the layers of a sentence's words: `layers[layer][word]`. */
export async function loadElmo(model, spelling) {
  const session = await ort.InferenceSession.create(model, { executionProviders: ["wasm"] });

  return async function run(words) {
    const shape = [1, words.length];
    const { hidden_states } = await session.run({
      input_ids: new ort.Tensor("int64", spell(words, spelling), [...shape, spelling.numCells]),
      attention_mask: new ort.Tensor("int64", new BigInt64Array(words.length).fill(1n), shape),
    });
    const [numLayers, , , width] = hidden_states.dims;
    return cutLayers(hidden_states.data, numLayers, width);
  };
}
