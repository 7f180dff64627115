// Tests a generation on the page, with a session that answers at once.

import { describe, expect, it } from 'vitest';
import { createStore } from '../../src/base/store.js';
import { createGenerating, finished } from '../../src/training/generating.js';
import { mostTokens, type Cost } from '../../src/training/messages.js';
import type { TrainingSession } from '../../src/training/session.js';
import { blank } from '../../src/training/view.js';
import { usualSettings } from './usual_settings.js';

function setUp(delay = 0) {
  const asked: string[] = [];
  let length = 0;
  let failure: string | undefined;
  const cost = (token: number): Cost => ({ token, rows: 1, multiplyAdds: 1, bytes: 1, milliseconds: 1 });
  const session = {
    view: createStore(blank(usualSettings('induction'))),
    async call(name: string, sequence?: number) {
      asked.push(sequence === undefined ? name : `${name} ${sequence}`);
      if (failure) throw new Error(failure);
      if (name === 'prompt') {
        length = 8;
        return { tokens: [0, 1, 2, 3, 4, 5, 6, 0], period: 7 };
      }
      length += 1;
      return { length, cached: cost(length % 7), plain: cost(length % 7) };
    },
  };
  const generating = createGenerating(session as unknown as TrainingSession, 3, () => delay);
  return { asked, session, generating, fail: (message: string) => (failure = message) };
}

describe('generating', () => {
  it('asks for the prompt once, and for tokens until the end', async () => {
    const { asked, generating } = setUp();
    await generating.tick();
    expect(asked).toEqual(['prompt 3', 'tick']);
    await generating.run();
    const view = generating.view.get();
    expect([view.tokens.length, finished(view), view.running]).toEqual([mostTokens, true, false]);
    expect(asked.filter((name) => name === 'prompt 3').length).toBe(1);
    await generating.tick();
    expect(generating.view.get().tokens.length).toBe(mostTokens);
  });

  it('begins again when it is run after its end', async () => {
    const { asked, generating } = setUp();
    await generating.run();
    await generating.run();
    expect(asked.filter((name) => name === 'prompt 3').length).toBe(2);
  });

  it('pauses between two tokens', async () => {
    const { generating } = setUp(1);
    const done = generating.run();
    while (generating.view.get().tokens.length <= 8) await new Promise((resolve) => setTimeout(resolve));
    generating.pause();
    await done;
    const { tokens, running } = generating.view.get();
    expect(running).toBe(false);
    expect(tokens.length).toBeGreaterThan(8);
    expect(tokens.length).toBeLessThan(mostTokens);
  });

  it('starts anew with another model, and with another sequence', async () => {
    const { asked, session, generating } = setUp();
    await generating.tick();
    session.view.set({ ...session.view.get(), model: 1 });
    expect(generating.view.get().tokens).toEqual([]);
    generating.restart(5);
    await generating.tick();
    expect(asked.slice(-2)).toEqual(['prompt 5', 'tick']);
  });

  it('drops the answers of an older round', async () => {
    const { generating } = setUp();
    const late = generating.tick();
    generating.restart(4);
    await late;
    expect(generating.view.get()).toMatchObject({ tokens: [], ticks: [] });
  });

  it('says what went wrong', async () => {
    const { generating, fail } = setUp();
    fail('the worker has ended');
    await generating.run();
    expect(generating.view.get()).toMatchObject({ running: false, message: 'the worker has ended' });
  });
});
