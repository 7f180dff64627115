// Compares results of the GPU within bounds, and checks the guard words behind them.

export const POISON = 0x4b4b4b4b;

/** Throws unless the words behind a tensor's numbers are still poison. */
export async function checkGuard({ gpu }, tensor, name) {
  const { buffer, offset, size, dtype } = tensor;
  const bytes = size * { f32: 4, bool: 1 }[dtype] || size * 2;
  const first = Math.ceil((offset + bytes) / 4) * 4;
  if (first >= buffer.size) return;
  using rest = gpu.wrap(buffer, { shape: [buffer.size / 4] });
  const words = new Uint32Array((await rest.read()).buffer).subarray(first / 4);
  const wrong = words.findIndex((word) => word !== POISON);
  if (wrong >= 0) throw new Error(`${name}: word ${wrong} behind its end was written`);
}

/** Largest differences by kind of result. */
export class Worst {
  at = {};
  of(name, difference, limit, label) {
    if (!(difference <= limit)) throw new Error(`${name}: ${difference} is above ${limit}; ${label}`);
    this.at[name] = Math.max(this.at[name] ?? 0, difference);
  }
  toString() {
    return Object.entries(this.at)
      .map(([name, worst]) => `${name} ${worst.toExponential(1)}`)
      .join(', ');
  }
}

/** Relative above 1, as the CPU's bounds are. */
export function difference(actual, wanted) {
  if (actual.length !== wanted.length) return Infinity;
  let worst = 0;
  for (let at = 0; at < wanted.length; at += 1) {
    const [a, w] = [actual[at], wanted[at]];
    if (a === w || (Number.isNaN(a) && Number.isNaN(w))) continue;
    const error = Math.abs(a - w) / Math.max(1, Math.abs(w));
    worst = Math.max(worst, Number.isFinite(error) ? error : Infinity);
  }
  return worst;
}
