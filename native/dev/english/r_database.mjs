// Reads vectors of strings from the data of an R package (data/Rdata.rdx and Rdata.rdb). The format is in
// "R Internals", 1.8 Serialization Formats: XDR, big-endian.
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { gunzipSync, inflateSync } from 'node:zlib';

const TYPE = { symbol: 1, pairs: 2, logicals: 10, integers: 13, strings: 16, list: 19, reference: 255, nothing: 254 };

/** Returns the value as a string, an array of them or of numbers, a Map for a list with names, or null. */
function unserialized(bytes) {
  if (bytes.toString('latin1', 0, 2) !== 'X\n') throw new Error('R data: expected the format XDR');
  let at = 2;
  const next = () => (at += 4) && bytes.readInt32BE(at - 4);
  const version = next();
  at += 8; // the versions of R that wrote it and that can read it
  if (version === 3) {
    const length = next();
    at += length; // the name of the encoding
  }
  const references = [];

  function string() {
    next();
    const length = next();
    if (length === -1) return null;
    return bytes.toString('utf8', at, (at += length));
  }

  function item() {
    const flags = next();
    const type = flags & 0xff;
    const times = (read) => Array.from({ length: next() }, read);
    const withAttributes = (value) => {
      const attributes = flags & 0x200 ? item() : null;
      return attributes?.has('names') ? new Map(attributes.get('names').map((name, i) => [name, value[i]])) : value;
    };
    if (type === TYPE.nothing) return null;
    if (type === TYPE.reference) return references[(flags >> 8) - 1];
    if (type === TYPE.symbol) {
      const name = string();
      references.push(name);
      return name;
    }
    if (type === TYPE.integers || type === TYPE.logicals) return withAttributes(times(next));
    if (type === TYPE.strings) return withAttributes(times(string));
    if (type === TYPE.list) return withAttributes(times(item));
    if (type === TYPE.pairs) {
      const [name, value, rest] = [item(), item(), item()];
      return new Map([[name, value], ...(rest ?? [])]);
    }
    throw new Error(`R data: expected strings, got a value of type ${type}`);
  }
  return item();
}

/** Returns a function that reads a vector of strings by its name. */
export async function openDatabase(folder) {
  const index = unserialized(gunzipSync(await readFile(join(folder, 'Rdata.rdx'))));
  const blocks = await readFile(join(folder, 'Rdata.rdb'));
  return (name) => {
    const [begin, length] = index.get('variables').get(name);
    // Each block begins with the number of its bytes before compression.
    return unserialized(inflateSync(blocks.subarray(begin + 4, begin + length)));
  };
}
