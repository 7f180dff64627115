// Sparse autoencoders: the table tests/models/directions_cases.json, which the library's test reads, too.

import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { writeSafetensors } from 'multihead';
import { type ModelFile, openModel, openSparseAutoencoder, type SparseAutoencoder } from 'multihead/models';
import { afterAll, describe, expect, it, onTestFinished } from 'vitest';
import { errorOf, rejectionOf } from './builds.ts';

type Numbers = readonly number[] | readonly (readonly number[])[];
type Record_ = Readonly<Record<string, unknown>>;
interface Case {
  readonly name: string;
  readonly cfg: Record_;
  readonly tensors: Readonly<Record<string, Numbers>>;
  readonly info: Record_;
  readonly rows: number[][];
  readonly features: readonly (readonly number[])[];
  readonly decoded: readonly (readonly number[])[];
  readonly edit: { readonly feature: number; readonly strength: number; readonly value: readonly number[] };
}
interface ErrorCase {
  readonly name: string;
  readonly base: string;
  readonly cfg: Record_;
  readonly tensors: Readonly<Record<string, Numbers | null>>;
  readonly message: string;
}
const tests = fileURLToPath(new URL('../../tests', import.meta.url));
const table = JSON.parse(readFileSync(join(tests, 'models', 'directions_cases.json'), 'utf8')) as { cases: Case[]; errors: ErrorCase[] };
const caseNamed = (name: string): Case => table.cases.find((each) => each.name === name) as Case;

const tensorOf = (numbers: Numbers) => {
  const [first] = numbers;
  return { shape: Array.isArray(first) ? [numbers.length, first.length] : [numbers.length], data: Float32Array.from(numbers.flat()) };
};
/** Members of `changes` replace those of `object`; null removes them. */
const changed = <T>(object: Readonly<Record<string, T>>, changes: Readonly<Record<string, T | null>>): Record<string, T> =>
  Object.fromEntries(Object.entries({ ...object, ...changes }).filter(([, value]) => value !== null)) as Record<string, T>;

const fileNamed = (name: string, bytes: BlobPart): ModelFile => Object.assign(new Blob([bytes]), { name });
type Made = Pick<Case, 'cfg'> & { readonly tensors: Readonly<Record<string, Numbers>> };
const bytesOf = ({ tensors }: Made, dtype: 'f32' | 'f16' | 'bf16' = 'f32') =>
  writeSafetensors(Object.fromEntries(Object.entries(tensors).map(([name, numbers]) => [name, tensorOf(numbers)])), { dtype });
const filesOf = (made: Made, dtype?: 'f32' | 'f16' | 'bf16') =>
  [fileNamed('cfg.json', JSON.stringify(made.cfg)), fileNamed('sae_weights.safetensors', bytesOf(made, dtype))] as const;

async function opened(made: Made): Promise<SparseAutoencoder> {
  const autoencoder = await openSparseAutoencoder(filesOf(made));
  onTestFinished(() => autoencoder.dispose());
  return autoencoder;
}

function expectNear(got: ArrayLike<number>, wanted: readonly number[]): void {
  expect(got.length).toBe(wanted.length);
  wanted.forEach((number, at) => expect(Math.abs((got[at] as number) - number)).toBeLessThan(2e-5 * (1 + Math.abs(number))));
}

const root = mkdtempSync(join(tmpdir(), 'multihead-directions-'));
afterAll(() => rmSync(root, { recursive: true }));

describe('a sparse autoencoder', () => {
  it.each(table.cases)('has the features of its definition: $name', async (each) => {
    for (const dtype of ['f32', 'f16', 'bf16'] as const) {
      using autoencoder = await openSparseAutoencoder(filesOf(each, dtype));
      expect(autoencoder.info).toEqual(each.info);
      const features = autoencoder.encode(each.rows);
      expect(features.shape).toEqual([each.rows.length, 9]);
      expectNear(features.data, each.features.flat());
      const decoded = autoencoder.decode(features, each.rows);
      expect(decoded.shape).toEqual([each.rows.length, 6]);
      expectNear(decoded.data, each.decoded.flat());
      const edit = autoencoder.edit(each.edit.feature, each.edit.strength, 2) as {
        site: string;
        layer: number;
        add: { shape: number[]; data: Float32Array };
      };
      expect([edit.site, edit.layer]).toEqual([each.info['site'], each.info['layer']]);
      expect(edit.add.shape).toEqual(edit.site === 'z' ? [2, 3] : [6]);
      expectNear(edit.add.data, each.edit.value);
    }
  });

  it('keeps the axes of rows', async () => {
    const each = caseNamed('gated');
    const autoencoder = await opened(each);
    const data = Float32Array.from(each.rows.flat());
    const heads = autoencoder.encode({ shape: [1, 3, 2, 3], data });
    expect(heads.shape).toEqual([1, 3, 9]);
    expectNear(heads.data, each.features.flat());
    expect(autoencoder.encode(data.slice(0, 6)).shape).toEqual([9]);
    expect(autoencoder.decode(heads).shape).toEqual([1, 3, 6]);
    expect(autoencoder.encode({ shape: [0, 6], data: new Float32Array() }).shape).toEqual([0, 9]);
  });

  it.each(table.errors)('refuses wrong files in one sentence: $name', async ({ base, cfg, tensors, message }) => {
    const from = caseNamed(base);
    const error = await rejectionOf(
      openSparseAutoencoder(filesOf({ cfg: changed(from.cfg, cfg), tensors: changed<Numbers>(from.tensors, tensors) })),
    );
    expect(error.message).toBe(message);
    expect(error.code).toBe(message.startsWith('cfg.json: ') ? 'E_OPTION' : 'E_FORMAT');
  });

  it('refuses other files', async () => {
    const each = caseNamed('standard');
    const [cfg, weights] = filesOf(each);
    const fails = async (...files: ModelFile[]) => (await rejectionOf(openSparseAutoencoder(files))).message;
    expect(await fails(weights)).toMatch(/^cfg\.json: expected a file of this name among the files, got /);
    expect(await fails(cfg)).toBe('sae_weights.safetensors: expected a file of this name among the files, got none');
    expect(await fails(cfg, fileNamed('sae_weights.safetensors', bytesOf(each).slice(0, -4)))).toMatch(/^safetensors data: /);
    expect(await fails(fileNamed('cfg.json', '[]'), weights)).toMatch(/^cfg\.json: expected /);
    const infinite = { ...each, tensors: { ...each.tensors, b_enc: Array<number>(9).fill(Infinity) } };
    expect((await rejectionOf(openSparseAutoencoder(filesOf(infinite)))).message).toBe('b_enc: expected finite numbers, got NaN or an infinity');
    expect((await rejectionOf(openSparseAutoencoder([cfg, weights], { path: '../x' }))).argument).toBe('path');
    expect((await rejectionOf(openSparseAutoencoder([cfg, weights], { signal: AbortSignal.abort() }))).code).toBe('E_ABORTED');
  });

  it('refuses wrong arguments in one sentence', async () => {
    const each = caseNamed('standard');
    const autoencoder = await opened(each);
    const scaled = await opened(caseNamed('standard with constant_norm_rescale'));
    const fails = (call: () => unknown) => errorOf(call).message;
    expect(fails(() => autoencoder.encode([[1, 2, 3]]))).toBe('rows: expected rows of 6 numbers, got (1, 3)');
    expect(fails(() => autoencoder.encode({ shape: [2, 3], data: new Float32Array(6) }))).toBe('rows: expected rows of 6 numbers, got (2, 3)');
    expect(fails(() => autoencoder.encode(new Float32Array(6).fill(NaN)))).toBe('rows: expected finite numbers, got NaN');
    expect(fails(() => autoencoder.encode('text' as never))).toMatch(/^rows: /);
    expect(fails(() => autoencoder.decode(new Float32Array(6)))).toBe('features: expected rows of 9 numbers, got (6)');
    expect(fails(() => scaled.decode(new Float32Array(9)))).toMatch(/^encoded: /);
    expect(fails(() => scaled.decode(new Float32Array(9), each.rows))).toBe('encoded: expected 1 rows, got (3)');
    for (const feature of [-1, 9, 0.5, NaN]) expect(fails(() => autoencoder.edit(feature, 1))).toBe(`feature: expected 0 to 8, got ${feature}`);
    expect(fails(() => autoencoder.edit(0, Infinity))).toBe('strength: expected a finite number, got Infinity');
    const heads = await opened(caseNamed('gated'));
    for (const count of [undefined, 4, 0])
      expect(fails(() => heads.edit(0, 1, count))).toBe(`numHeads: expected a number of heads that divides 6, got ${count}`);
    autoencoder.dispose();
    autoencoder.dispose();
    expect(autoencoder.disposed).toBe(true);
    for (const call of [() => autoencoder.encode(each.rows), () => autoencoder.decode(each.rows), () => autoencoder.edit(0, 1)]) {
      expect(errorOf(call).code).toBe('E_DISPOSED');
    }
  });

  it('opens by path and by address, below it too', async () => {
    const each = caseNamed('standard');
    mkdirSync(join(root, 'sae', 'blocks.1'), { recursive: true });
    writeFileSync(join(root, 'sae', 'blocks.1', 'cfg.json'), JSON.stringify(each.cfg));
    writeFileSync(join(root, 'sae', 'blocks.1', 'sae_weights.safetensors'), bytesOf(each));
    const server = createServer((request, response) => {
      response.end(readFileSync(join(root, decodeURIComponent(request.url as string))));
    });
    await new Promise<void>((resolve) => void server.listen(0, resolve));
    onTestFinished(() => void server.close());
    const address = `http://localhost:${(server.address() as AddressInfo).port}/sae`;
    for (const [source, path] of [
      [join(root, 'sae'), 'blocks.1'],
      [join(root, 'sae', 'blocks.1'), undefined],
      [address, 'blocks.1'],
    ] as const) {
      using autoencoder = await openSparseAutoencoder(source, { path });
      expectNear(autoencoder.encode(each.rows).data, each.features.flat());
    }
  });

  it('edits a model by feature, as the vector does', async () => {
    using model = await openModel(join(tests, 'conformance', 'models', 'llama3'));
    const { embedDim, numHeads, numLayers } = model.info;
    const ids = [5, 6, 7];
    const vector = Array.from({ length: embedDim }, (_, at) => Math.sin(at));
    const make = (hook: string, layer = 1) =>
      opened({
        cfg: { d_in: embedDim, d_sae: 2, hook_name: `blocks.${layer}.${hook}` },
        tensors: { W_enc: vector.map((x) => [x, -x]), W_dec: [vector, vector.map((x) => -x)], b_enc: [0, 0], b_dec: vector.map(() => 0) },
      });
    const plain = await model.logits(ids);
    for (const hook of ['hook_resid_mid', 'attn.hook_z']) {
      const autoencoder = await make(hook);
      const { site } = autoencoder.info;
      const add = { shape: site === 'z' ? [numHeads, embedDim / numHeads] : [embedDim], data: Float32Array.from(vector, (x) => 3 * Math.fround(x)) };
      const edits = [autoencoder.edit(0, 3, numHeads)];
      const { logits } = await model.run(ids, { edits });
      const byHand = await model.run(ids, { edits: [{ site, layer: 1, add }] });
      expect(logits).toEqual(byHand.logits);
      expect(logits?.data.slice(-10)).not.toEqual(plain.data.slice(-10));
      const { captures } = await model.run(ids, { capture: [{ site, layer: 1 }], logits: 'none' });
      expect(autoencoder.encode(captures[0]!).shape).toEqual([3, 2]);
      expect((await model.complete(ids, { edits, maxNewTokens: 2 })).ids.length).toBe(2);
    }
    const beyond = await make('hook_resid_pre', numLayers);
    expect((await rejectionOf(model.run(ids, { edits: [beyond.edit(0, 1)] }))).argument).toBe('edits[0].layer');
  });
});
