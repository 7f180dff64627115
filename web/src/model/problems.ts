// Errors of the library about a model's files, in the words of a visitor.

/** What a message of the library looks like, and what the page says instead. */
const known: readonly (readonly [RegExp, (name: string, ...found: string[]) => string])[] = [
  [/^safetensors( header)?: /, (name) => `${name} is not a safetensors file.`],
  [/: expected data_offsets within /, (name) => `${name} ends too early. Perhaps the download was cut off.`],
  [/expected a matrix (wte\.weight), got none/, (name, tensor) => `${name} is not a GPT-2: it has no ${tensor}.`],
  [
    /^stateDict: expected the \d+ parameters of this module, got missing: ([\w.]+) \(([\d, ]+)\)/,
    (name, tensor, shape) => `${name} lacks ${tensor} (${shape!.replaceAll(', ', ' × ')}).`,
  ],
];

/** Says why a file cannot be used. Keeps a message that the page does not know. */
export function problemOf(name: string, message: string): string {
  for (const [pattern, say] of known) {
    const found = pattern.exec(message);
    if (found) return say(name, ...found.slice(1));
  }
  return `${name} cannot be used: ${message}`;
}

/** "h.0.attn.c_attn.weight has 1 NaN": the first tensor with a value that is not a number; undefined if there is none. */
export function notANumberIn(tensors: Readonly<Record<string, { readonly data: ArrayLike<number> }>>): string | undefined {
  for (const [name, { data }] of Object.entries(tensors)) {
    let count = 0;
    for (let i = 0; i < data.length; i += 1) if (Number.isNaN(data[i]!)) count += 1;
    if (count > 0) return `${name} has ${count} NaN`;
  }
  return undefined;
}
