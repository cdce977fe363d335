// Speed and exactness of a demo's model in WebAssembly, one thread: node demo_in_node.mjs FOLDER
import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const PASSES = 5;
const folder = resolve(process.argv[2]);
const { cutLayers, loadElmo } = await import(pathToFileURL(`${folder}/elmo.js`));
const data = JSON.parse(readFileSync(`${folder}/data.json`));
const numbers = new Float32Array(new Uint8Array(readFileSync(`${folder}/collection.bin`)).buffer);
const collection = cutLayers(numbers, data.numLayers, data.width);
const model = readFileSync(`${folder}/model.onnx`);
const run = await loadElmo(model, data.spelling);

for (let pass = 1; pass <= PASSES; pass++) {
  const start = performance.now(), computed = [];
  for (const words of data.sentences) computed.push(await run(words));
  const seconds = (performance.now() - start) / 1000;
  console.log(`pass ${pass}: ${Math.round(data.sentences.flat().length / seconds)} words a second`);
  if (pass < PASSES) continue;
  for (let layer = 0; layer < data.numLayers; layer++) {
    let largest = 0, cosines = 0;
    data.places.forEach(([number, position], row) => {
      const a = collection[layer][row], b = computed[number][layer][position];
      let ab = 0, aa = 0, bb = 0;
      a.forEach((value, i) => {
        largest = Math.max(largest, Math.abs(value - b[i]));
        ab += value * b[i];
        aa += value * value;
        bb += b[i] * b[i];
      });
      cosines += ab / Math.sqrt(aa * bb) / data.places.length;
    });
    console.log(`layer ${layer}: largest difference ${largest.toPrecision(2)}, mean cosine ${cosines.toFixed(5)}`);
  }
}
console.log(`model.onnx: ${(model.length / 1e6).toFixed(1)} MB`);
