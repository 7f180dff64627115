// The benchmark cases of cases.json that WebAssembly can run, with the names of multihead-bench.

import table from './cases.json' with { type: 'json' };

function shapeOf(name) {
  const [batch, heads, numKvHeads, queries, keys, width] = table.shapes[name];
  return { name, batch, heads, numKvHeads, queries, keys, width };
}

export const CASES = table.cases
  .filter((entry) => entry.in === undefined)
  .flatMap(({ op, shapes, masks = ['full'], dtypes = ['f32'] }) =>
    shapes.flatMap((shape) =>
      masks.flatMap((mask) => dtypes.map((dtype) => ({ op, shape: shapeOf(shape), mask, dtype, name: `${op}/${shape}/${mask}/${dtype}/threads:1` }))),
    ),
  );

/** The cases whose names match, in the order of the list. */
export function chosenCases(filter) {
  const wanted = new RegExp(filter);
  return CASES.filter(({ name }) => wanted.test(name));
}

/** The cases of a report, in the order of the list. */
export const reportCases = () => CASES.filter(({ name }) => table.report.includes(name.replace('/threads:1', '')));

/** Returns the case of that name, for any number of threads; null if there is none. */
export function caseOf(name) {
  const atOne = name.replace(/threads:\d+$/, 'threads:1');
  return CASES.find((known) => known.name === atOne) ?? null;
}
