// Chooses how the caller's thread and its workers exchange numbers: by shared memory or by messages.

export type Exchange = 'messages' | 'shared memory';

/** Chooses between shared memory and messages, and states the reason. */
export function exchangeOf(wanted: 'auto' | 'messages'): { exchange: Exchange; why: string } {
  if (wanted === 'messages') return { exchange: 'messages', why: 'requested with { exchange: "messages" }' };
  const { crossOriginIsolated } = globalThis as { crossOriginIsolated?: boolean };
  if (typeof SharedArrayBuffer !== 'function' || crossOriginIsolated === false) {
    const why = crossOriginIsolated === true ? 'this browser has no SharedArrayBuffer' : 'the page is not cross-origin isolated';
    return { exchange: 'messages', why };
  }
  const why = crossOriginIsolated === true ? 'the page is cross-origin isolated' : 'this is no browser page';
  return { exchange: 'shared memory', why };
}
