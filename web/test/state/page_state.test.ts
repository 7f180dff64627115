import { describe, expect, it } from 'vitest';
import { defaults, defaultsOf, fromHash, placeIn, repaired, toHash, type PageState } from '../../src/state/page_state.js';

describe('the address', () => {
  it('is empty for the defaults', () => {
    expect(toHash(defaults)).toBe('');
    for (const hash of ['', '#']) expect(fromHash(hash)).toEqual({ state: defaults, broken: [] });
  });

  it('of a link from before the words model still shows hand-built heads and their example', () => {
    expect(fromHash('#query=7&head=2').state).toEqual({ ...defaultsOf('rules'), query: 6, head: 1 });
    expect(fromHash('#text=old+text').state).toMatchObject({ source: 'rules', text: 'old text', causal: false });
    expect(defaultsOf('rules').text).toBe('I saw the dog and the dog ran');
    expect(toHash(defaultsOf('rules'))).toBe('source=rules');
    expect(toHash({ ...defaults, head: 2 })).toBe('source=novels&head=3');
    expect(toHash({ ...defaults, novelsLayer: 1 })).toBe('source=novels&novelsLayer=1');
  });

  it('restores every field', () => {
    const states: PageState[] = [
      {
        ...defaultsOf('rules'),
        text: 'A & b = "c"? 猫 50% #1 +1',
        heads: ['itself', 'first'],
        causal: true,
        step: 'output',
        part: 'v',
        head: 1,
        query: 2,
        key: 0,
        stepView: 'numbers',
      },
      { ...defaults, text: '' },
      { ...defaults, causal: false },
      { ...defaultsOf('rules'), causal: true },
    ];
    for (const state of states) expect(fromHash(`#${toHash(state)}`)).toEqual({ state, broken: [] });
  });

  it.each([
    ['causal', 'causal=yes'],
    ['heads', 'heads=previous.nonsense'],
    ['heads', 'heads='],
    ['heads', 'heads=first.first'],
    ['step', 'step=42'],
    ['head', 'head=0'],
    ['head', 'head=9'],
    ['head', 'head=1e1'],
    ['query', 'query=9'],
    ['key', 'key=x'],
    ['part', 'part=w'],
    ['text', `text=${'a'.repeat(3000)}`],
    ['"constructor"', 'constructor=1'],
    ['"color"', 'color=red'],
    ['"Your session has expired, log in at evil…"', 'Your+session+has+expired,+log+in+at+evil.example'],
    ['"a\\u202eb\\n"', 'a%E2%80%AEb%0A=1'],
  ])('gives defaults for a broken %s and names it', (name, hash) => {
    // A field that can be read, but does not fit, makes it a link from before the words model.
    expect(fromHash(`#${hash}`)).toEqual({ state: defaultsOf(/=9$/.test(hash) ? 'rules' : 'novels'), broken: [name] });
  });

  it('gives the default for a broken percent sequence, and names the field', () => {
    expect(fromHash('#text=%E0%A4%A&head=2')).toEqual({
      state: { ...defaultsOf('rules'), head: 1 },
      broken: ['text'],
    });
    expect(fromHash('#%E0%A4%A')).toEqual({ state: defaults, broken: ['"%E0%A4%A"'] });
  });

  it('may name a section, alone or among other parts', () => {
    expect(fromHash('#train')).toEqual({ state: defaults, broken: [] });
    expect(fromHash('#head=2&at=own')).toEqual({ state: { ...defaultsOf('rules'), head: 1 }, broken: [] });
    expect(['#train', '#head=2&at=own', '#head=2', '#at=nowhere'].map(placeIn)).toEqual(['train', 'own', undefined, undefined]);
    expect(fromHash('#splitHeads=7&revealView=numbers&at=reveal')).toEqual({ state: { ...defaults, step: 'split' }, broken: [] });
    const placesAndSteps = ['#reveal', '#step=x&at=reveal', '#galleryView=numbers&at=bend'].map((hash) => [placeIn(hash), fromHash(hash).state.step]);
    expect(placesAndSteps).toEqual([
      ['steps', 'split'],
      ['steps', 'x'],
      ['steps', 'scale'],
    ]);
    expect(fromHash('#at=nowhere').broken).toEqual(['"at"']);
  });

  it('keeps the valid fields', () => {
    const { state, broken } = fromHash('#text=hi&causal=2&head=2');
    expect(state).toEqual({ ...defaultsOf('rules'), text: 'hi', head: 1 });
    expect(broken).toEqual(['causal']);
  });

  it('checks the chosen head and words against the heads and the text in the same address', () => {
    expect(fromHash('#head=2&heads=first').broken).toEqual(['head']);
    expect(fromHash('#source=novels&head=5').broken).toEqual(['head']);
    expect(fromHash('#text=two+words&query=3&key=2').broken).toEqual(['query']);
    expect(fromHash('#text=two+words&query=2&key=3').broken).toEqual(['key']);
  });

  it('repairs a head that is not among the heads', () => {
    expect(repaired({ ...defaults, head: -1 }).head).toBe(0);
  });

  it('repairs a selection whose word or head is gone', () => {
    const state = { ...defaultsOf('rules'), query: 6, key: 1, head: 3 };
    expect(repaired(state)).toEqual(state);
    expect(repaired({ ...state, text: 'two words', heads: ['first'] })).toMatchObject({
      query: null,
      key: 1,
      head: 0,
    });
  });
});
