// node run_onnx.mjs MODEL INPUT.npy OUTPUT.npy: what ONNX Runtime (npm: onnxruntime-web) makes of an input.
// The module is looked for in the folder that ENGINE_TEST_ONNXRUNTIME names.
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";

const [model, inputFile, outputFile] = process.argv.slice(2);
const require = createRequire(process.env.ENGINE_TEST_ONNXRUNTIME + "/");
const ort = require("onnxruntime-web");
ort.env.wasm.numThreads = 1;

// The format of NumPy: magic, version, size of the header, a Python dictionary, the elements.
function readNpy(file) {
  const bytes = readFileSync(file);
  const size = bytes.readUInt16LE(8);
  const header = bytes.toString("latin1", 10, 10 + size);
  const shape = header.match(/\(([^)]*)\)/)[1].split(",").filter((n) => n.trim() !== "").map(Number);
  const floats = header.includes("<f4");
  const data = Uint8Array.from(bytes.subarray(10 + size)).buffer;
  return new ort.Tensor(floats ? "float32" : "int32", floats ? new Float32Array(data) : new Int32Array(data), shape);
}

function writeNpy(file, tensor) {
  let header = `{'descr': '<f4', 'fortran_order': False, 'shape': (${tensor.dims.join(", ")},), }`;
  header += " ".repeat(64 - ((10 + header.length + 1) % 64)) + "\n";
  const head = Buffer.alloc(10);
  head.write("\x93NUMPY\x01\x00", "latin1");
  head.writeUInt16LE(header.length, 8);
  writeFileSync(file, Buffer.concat([head, Buffer.from(header, "latin1"), Buffer.from(tensor.data.buffer)]));
}

const session = await ort.InferenceSession.create(new Uint8Array(readFileSync(model)));
const results = await session.run({ [session.inputNames[0]]: readNpy(inputFile) });
writeNpy(outputFile, results[session.outputNames[0]]);
