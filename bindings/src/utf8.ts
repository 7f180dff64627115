// Converts text to bytes and back. Jest's jsdom lacks TextEncoder and TextDecoder, which every browser has; Node's are
// used there.

type Classes = Pick<typeof globalThis, 'TextDecoder' | 'TextEncoder'>;

function classes(): Classes {
  const { process } = globalThis as { process?: { getBuiltinModule?(name: 'node:util'): Classes } };
  return (typeof TextDecoder === 'function' ? undefined : process?.getBuiltinModule?.('node:util')) ?? globalThis;
}

export const utf8Decoder = (options?: TextDecoderOptions): TextDecoder => new (classes().TextDecoder)('utf-8', options);

export const toUtf8 = (text: string): Uint8Array<ArrayBuffer> => new (classes().TextEncoder)().encode(text);
