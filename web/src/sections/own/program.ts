// The programs that compute the results of the laboratory again, in JavaScript with multihead/models.

import { download, el } from '../../dom/dom.js';
import type { Change, OpenedModel, Pair } from '../../model/messages.js';

/** `mostTokens`: most tokens that the page reads of a text. */
export interface ProgramModel extends Pick<OpenedModel, 'weights' | 'readsText'> {
  readonly name: string;
  readonly mostTokens: number;
}

const comment = (text: string): string => text.replaceAll(/[\r\n\u2028\u2029]/g, ' ');

const opening = ({ name, weights }: ProgramModel): string[] => [
  ...["import { openModel } from 'multihead/models';", '', `// The path, address or name on the hub of ${comment(name)}.`],
  `const model = await openModel(process.argv[2]${weights === undefined ? '' : `, { weights: '${weights}' }`});`,
];

const idsOf = ({ readsText, mostTokens }: ProgramModel, text: string): string =>
  readsText
    ? `(await model.encode(${JSON.stringify(text)})).ids.slice(0, ${mostTokens})`
    : `[${text.split(/[\s,]+/).join(', ')}].slice(0, ${mostTokens})`;

const lines = (parts: readonly string[]): string => `${parts.join('\n')}\n`;

/** Prints the likeliest word of each layer after each token with its probability, and the logarithm of each token's probability. */
export const lensProgram = (model: ProgramModel, text: string): string =>
  lines([
    ...opening(model),
    `const ids = ${idsOf(model, text)};`,
    'const lens = await model.lens(ids, { top: 1 });',
    'for (const [row, layer] of lens.layers.entries()) {',
    '  const cells = Array.from(ids, (_, at) => row * ids.length + at);',
    `  const words = await Promise.all(cells.map((at) => ${model.readsText ? 'model.decode([lens.ids[at]])' : 'lens.ids[at]'}));`,
    "  console.log(layer, cells.map((at, i) => `${JSON.stringify(words[i])} ${lens.probabilities[at].toFixed(3)}`).join('  '));",
    '}',
    'const { values } = await model.logProbs(ids);',
    "console.log('ln p', Array.from(values, (value) => value.toFixed(3)).join(' '));",
    'model.dispose();',
  ]);

/** Prints the metrics of both texts and the three maps: the change of the metric for each layer. */
export const experimentProgram = (model: ProgramModel, { ids, tokens, words, attribution }: Pair): string =>
  lines([
    ...opening(model),
    `const clean = [${ids[0].join(', ')}];`,
    `const corrupt = [${ids[1].join(', ')}];`,
    `// The logit of ${comment(JSON.stringify(words[0]))} minus that of ${comment(JSON.stringify(words[1]))}.`,
    `const metric = { token: ${tokens[0]}, against: ${tokens[1]} };`,
    '',
    '/** Prints the change of the metric: a row for each layer. */',
    'function print(title, { shape: [, parts], data }, zero) {',
    '  console.log(title);',
    '  for (let at = 0; at < data.length; at += parts)',
    "    console.log(Array.from(data.subarray(at, at + parts), (value) => (value - zero).toFixed(3)).join(' '));",
    '}',
    '',
    'const heads = await model.patch(clean, corrupt, metric);',
    'console.log(heads.clean.toFixed(3), heads.corrupt.toFixed(3));',
    "print('by head', heads.values, heads.clean);",
    ...(typeof attribution === 'string' ? [] : ["print('by head, estimated', (await model.attributionPatch(clean, corrupt, metric)).values, 0);"]),
    "print('by position', (await model.patch(clean, corrupt, metric, { by: 'position' })).values, heads.clean);",
    'model.dispose();',
  ]);

/** Prints the continuation of a text by the changed model. */
export function changeProgram(model: ProgramModel, text: string, change: Change): string {
  const { layer } = change;
  const steered = change.kind === 'steer';
  const place = `site: '${steered ? 'resid_pre' : 'z'}', layer: ${layer}${steered ? '' : `, heads: [${change.head}]`}`;
  const read = `const read = async (ids) => (await model.run(ids, { capture: [{ ${place} }], logits: 'none' })).captures[0];`;
  const edits =
    change.kind === 'scale'
      ? [`const edit = { ${place}, scale: ${change.factor} };`]
      : change.kind === 'swap'
        ? [read, `const { shape, data } = await read(${idsOf(model, change.text)});`, `const edit = { ${place}, set: data.slice(-shape[2]) };`]
        : [
            ...[read, 'async function mean(ids) {', '  const { shape: [count, width], data } = await read(ids);'],
            '  const sumOf = (col) => data.reduce((sum, value, at) => (at % width === col ? sum + value : sum), 0);',
            ...['  return Float32Array.from({ length: width }, (_, col) => sumOf(col) / count);', '}'],
            ...change.texts.map((each, at) => `const ${at === 0 ? 'toward' : 'away'} = await mean(${idsOf(model, each)});`),
            `const edit = { ${place}, add: toward.map((value, at) => ${change.factor} * (value - away[at])) };`,
          ];
  return lines([
    ...opening(model),
    ...edits,
    `const prompt = ${model.readsText ? JSON.stringify(text) : idsOf(model, text)};`,
    'for await (const step of model.generate(prompt, { maxNewTokens: 24, edits: [edit] })) {',
    `  process.stdout.write(${model.readsText ? 'step.text' : '` ${step.token}`'});`,
    '}',
    'model.dispose();',
  ]);
}

export function programBox(name: string) {
  const code = el('code');
  const save = el('button', { class: 'save', 'aria-label': `Save the program of the ${name}` }, 'Save');
  const box = el('pre', { class: 'program', tabindex: 0 }, code);
  const element = el('details', { class: 'lab-program', hidden: true }, el('summary', {}, 'The same in a program'), save, box);
  save.addEventListener('click', () => download(new Blob([code.textContent!], { type: 'text/javascript' }), `${name}.mjs`));
  return {
    element,
    show(program: string | undefined): void {
      element.hidden = program === undefined;
      code.textContent = program ?? '';
    },
  };
}
