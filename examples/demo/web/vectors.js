// Arithmetic on vectors: mixes, neighbours, guesses, maps.

const dot = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);

/** Mix the layers of one word. */
export function mix(layers, row, weights) {
  return layers[0][row].map((_, i) =>
    weights.reduce((sum, weight, layer) => sum + weight * layers[layer][row][i], 0));
}

/** Return the rows of `collection` by falling cosine to a vector, as pairs `[row, cosine]`. */
export function sortByCosine(vector, collection, weights) {
  const length = Math.sqrt(dot(vector, vector));
  return collection[0]
    .map((_, row) => {
      const other = mix(collection, row, weights);
      return [row, dot(vector, other) / Math.max(length * Math.sqrt(dot(other, other)), 1e-12)];
    })
    .sort((a, b) => b[1] - a[1]);
}

/** Read the softmax: scales and biases in float32, then weights in 8 bits. */
export function readSoftmax(buffer, numWords) {
  return {
    scales: new Float32Array(buffer, 0, numWords),
    biases: new Float32Array(buffer, 4 * numWords, numWords),
    weights: new Int8Array(buffer, 8 * numWords),
  };
}

/** Return the numbers of the words that each direction expects at a position. */
export function guess(topLayer, position, boundaries, softmax, count) {
  const size = boundaries.forward.length;
  const before = topLayer[position - 1]?.subarray(0, size) ?? boundaries.forward;
  const found = { forward: expect(before, 1, softmax, count) };
  if (boundaries.backward) {
    const after = topLayer[position + 1]?.subarray(size) ?? boundaries.backward;
    const both = Float32Array.from(before, (value, i) => value + after[i]);
    found.backward = expect(after, 1, softmax, count);
    found.both = expect(both, 2, softmax, count); // the product of both distributions
  }
  return found;
}

function expect(vector, numBiases, { scales, biases, weights }, count) {
  const size = vector.length;
  const logits = scales.map((scale, word) => {
    let sum = 0;
    for (let i = 0; i < size; i++) sum += weights[word * size + i] * vector[i];
    return scale * sum + numBiases * biases[word];
  });
  return [...logits.keys()].sort((a, b) => logits[b] - logits[a]).slice(0, count);
}

/** Return the point of a vector in a plane. */
export function project(vector, origin, axes) {
  const centred = vector.map((value, i) => value - origin[i]);
  return axes.map((axis) => dot(centred, axis));
}

/** Exchange the last two different neighbouring letters inside a word; else double its end. */
export function misspell(word) {
  const letters = [...word];
  for (let n = letters.length - 3; n > 0; n--) {
    if (letters[n] !== letters[n + 1]) {
      [letters[n], letters[n + 1]] = [letters[n + 1], letters[n]];
      return letters.join("");
    }
  }
  return word + letters.at(-1);
}
