import { gpt2Config, load, writeSafetensors, type Multihead } from 'multihead';
import { beforeAll, describe, expect, it } from 'vitest';
import { ModelSession } from '../../src/model/session.js';
import { gpt2File } from './gpt2_file.js';

let mh: Multihead;
beforeAll(async () => {
  mh = await load();
});

const file = gpt2File({ metadata: { n_head: '3' } });
const model = file.bytes.slice().buffer;
const text = 'the black cat sat on the mat';

describe('a model that the visitor brought', () => {
  it('says what it is, and takes the heads from the metadata, the visitor, or 64 columns a head', () => {
    const session = new ModelSession(mh);
    const info = session.open({ model });
    expect(info).toMatchObject({ layers: 2, heads: 3, width: 12, vocabulary: 20, positions: 40, tokens: 'words' });
    expect(info.possibleHeads).toEqual([1, 2, 3, 4, 6, 12]);
    const parameters = Object.values(file.tensors).reduce((sum, { data }) => sum + data.length, 0);
    expect(info.parameters).toBe(parameters);
    expect(session.open({ model, heads: 6 }).heads).toBe(6);
    session.close();
  });

  it('shows the weights of every layer and head: causal rows that sum to 1', () => {
    const session = new ModelSession(mh);
    session.open({ model });
    const { weights, labels } = session.attend(text);
    expect(labels).toEqual(text.split(' '));
    expect(weights.map(({ shape }) => shape)).toEqual([[3, 7, 7], [3, 7, 7]]);
    for (const { data } of weights) {
      for (let row = 0; row < data.length; row += 7) {
        const query = (row / 7) % 7;
        expect(data.subarray(row, row + 7).reduce((a, b) => a + b)).toBeCloseTo(1, 5);
        expect(data.subarray(row + query + 1, row + 7).every((weight) => weight === 0)).toBe(true);
      }
    }
    session.close();
  });

  it('continues with a cache as it would without', () => {
    const session = new ModelSession(mh);
    session.open({ model });
    const labels: string[] = [];
    let next = session.start(text);
    for (;;) {
      labels.push(next.label);
      if (!next.more || labels.length === 12) break;
      next = session.next();
    }
    session.close();

    const plain = mh.transformer(gpt2Config(file.tensors, 3));
    plain.loadStateDict(file.tensors, { names: 'gpt2' });
    const words = [...new Set(text.split(' '))];
    const ids = text.split(' ').map((word) => words.indexOf(word));
    const wanted = labels.map(() => {
      const row = mh.scope(() => plain.forward(Int32Array.from(ids)).logits.toFloat32().slice(-20));
      ids.push(row.indexOf(Math.max(...row)));
      return words[ids.at(-1)!] ?? `token ${ids.at(-1)}`;
    });
    plain.dispose();
    expect(labels).toEqual(wanted);
  });

  it('gives the five likeliest next tokens, the chosen one first', () => {
    const session = new ModelSession(mh);
    session.open({ model });
    const { label, likeliest } = session.start(text);
    const shares = likeliest.map(({ share }) => share);
    expect([likeliest.length, likeliest[0]!.label]).toEqual([5, label]);
    expect(shares).toEqual([...shares].sort((a, b) => b - a));
    expect(shares.reduce((a, b) => a + b)).toBeLessThanOrEqual(1);

    const plain = mh.transformer(gpt2Config(file.tensors, 3));
    plain.loadStateDict(file.tensors, { names: 'gpt2' });
    const words = [...new Set(text.split(' '))];
    const ids = Int32Array.from(text.split(' '), (word) => words.indexOf(word));
    const row = mh.scope(() => plain.forward(ids).logits.toFloat32().slice(-20));
    plain.dispose();
    session.close();
    const total = row.reduce((sum, value) => sum + Math.exp(value), 0);
    const sorted = [...row].sort((a, b) => b - a).map((value) => Math.exp(value) / total);
    shares.forEach((share, i) => expect(share).toBeCloseTo(sorted[i]!, 6));
  });

  it('stops at the last position of the model', () => {
    const session = new ModelSession(mh);
    session.open({ model });
    let count = 1;
    for (let next = session.start(text); next.more; next = session.next()) count += 1;
    expect(count).toBe(40 - 7 + 1);
    session.close();
  });

  it('keeps the old model if a file is none, and says why', () => {
    const session = new ModelSession(mh);
    session.open({ model });
    const cut = model.slice(0, 200);
    expect(() => session.open({ model: cut })).toThrow(/safetensors/);
    expect(() => session.open({ model: new ArrayBuffer(3) })).toThrow(/at least 8 bytes/);
    const { ['h.1.ln_2.bias']: _, ...rest } = file.tensors;
    const without = writeSafetensors(rest).slice().buffer;
    expect(() => session.open({ model: without })).toThrow(/h\.1\.ln_2\.bias/);
    const other = writeSafetensors({ weight: { shape: [1], data: Float32Array.of(1) } }).slice().buffer;
    expect(() => session.open({ model: other })).toThrow(/wte\.weight/);
    expect(() => session.open({ model, vocabulary: '{"a": 50}', merges: '' })).toThrow(/only 20/);
    expect(session.attend(text).weights.length).toBe(2);
    session.close();
  });

  it('leaves nothing behind', () => {
    const before = mh.memory();
    const session = new ModelSession(mh);
    for (const heads of [2, 3]) {
      session.open({ model, heads });
      session.attend(text);
      session.start(text);
      session.next();
    }
    session.close();
    expect([mh.memory().live, mh.memory().bytes]).toEqual([before.live, before.bytes]);
  });
});
