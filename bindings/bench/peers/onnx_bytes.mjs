// The part of ONNX's protobuf schema (onnx/onnx.proto3) that a graph of a few nodes needs; the numbers below are its
// field tags. The alternative would be a dependency of several megabytes.

const encoder = new TextEncoder();

function varint(value) {
  const bytes = [];
  let rest = BigInt.asUintN(64, BigInt(value));
  for (; rest > 127n; rest >>= 7n) bytes.push(Number(rest & 127n) | 128);
  return [...bytes, Number(rest)];
}

function joined(parts) {
  const bytes = new Uint8Array(parts.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const part of parts) {
    bytes.set(part, at);
    at += part.length;
  }
  return bytes;
}

/** Encodes fields by tag: a number as a varint, a string or bytes unchanged, an array as one field per entry. */
function message(fields) {
  const parts = [];
  for (const [tag, values] of Object.entries(fields)) {
    for (const value of Array.isArray(values) ? values : [values]) {
      if (value === undefined) continue;
      if (typeof value === 'number') parts.push(varint(Number(tag) << 3), varint(value));
      else {
        const bytes = typeof value === 'string' ? encoder.encode(value) : value;
        parts.push(varint((Number(tag) << 3) | 2), varint(bytes.length), bytes);
      }
    }
  }
  return joined(parts);
}

const ELEMENT = { float32: 1, int32: 6, int64: 7, bool: 9 };

const valueInfo = ({ name, type = 'float32', shape }) => {
  const dims = shape?.map((extent) => message({ 1: extent }));
  return message({
    1: name,
    2: message({ 1: message({ 1: ELEMENT[type], ...(dims && { 2: message({ 1: dims }) }) }) }),
  });
};

/** Whole numbers and lists of them. */
const attribute = (name, value) => (Array.isArray(value) ? message({ 1: name, 8: value, 20: 7 }) : message({ 1: name, 3: value, 20: 2 }));

const node = ({ op, domain, inputs, outputs, attributes = {} }) =>
  message({
    1: inputs,
    2: outputs,
    4: op,
    5: Object.entries(attributes).map(([name, value]) => attribute(name, value)),
    7: domain,
  });

const initializer = ({ name, shape, data }) =>
  message({ 1: shape, 2: ELEMENT.float32, 8: name, 9: new Uint8Array(data.buffer, data.byteOffset, data.byteLength) });

/**
 * @param {object} graph
 * @param {{ op, domain?, inputs: string[], outputs: string[], attributes? }[]} graph.nodes
 * @param {{ name, type?, shape }[]} graph.inputs
 * @param {{ name, type?, shape? }[]} graph.outputs
 * @param {{ name, shape, data: Float32Array }[]} [graph.constants]
 * @returns {Uint8Array} an ONNX model
 */
export function onnxModel({ nodes, inputs, outputs, constants = [] }) {
  const graph = message({
    1: nodes.map(node),
    2: 'attention',
    5: constants.map(initializer),
    11: inputs.map(valueInfo),
    12: outputs.map(valueInfo),
  });
  const opsets = [
    ['', 23],
    ['com.microsoft', 1],
  ].map(([domain, version]) => message({ 1: domain, 2: version }));
  return message({ 1: 10, 2: 'multihead', 7: graph, 8: opsets });
}
