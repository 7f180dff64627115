// Text for errors and pages, and its conversion to UTF-8.

/** Control characters, line separators, bidirectional controls and unpaired surrogates. */
const controls = /[\p{Cc}\p{Zl}\p{Zp}\p{Cs}\p{Bidi_Control}]/gu;

const escaped = (text: string): string => text.replace(controls, (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, '0')}`);

/** Returns the first `most` UTF-16 units; appends "…" if there are more. Does not split a surrogate pair. */
const shortened = (text: string, most: number): string => (text.length > most ? `${text.slice(0, most).replace(/[\ud800-\udbff]$/, '')}…` : text);

/** Returns at most `most` characters of a text, with escapes such as "\u202e" for control characters. */
export const printable = (text: string, most = 80): string => escaped(shortened(text, most));

/** Like printable(), in quotation marks, with the escapes of JSON. */
export const quoted = (text: string, most = 80): string => escaped(JSON.stringify(shortened(text, most)));

/** A module of Node; undefined elsewhere. Accessed without import, so that bundlers need not resolve it. */
export const nodeModule = <M>(name: `node:${string}`): M | undefined =>
  (globalThis as { process?: { getBuiltinModule?(name: string): M } }).process?.getBuiltinModule?.(name);

type Classes = Pick<typeof globalThis, 'TextDecoder' | 'TextEncoder'>;

/** Jest's jsdom lacks TextEncoder and TextDecoder, which every browser has; Node's are used there. */
const classes = (): Classes => (typeof TextDecoder === 'function' ? undefined : nodeModule<Classes>('node:util')) ?? globalThis;

export const utf8Decoder = (options?: TextDecoderOptions): TextDecoder => new (classes().TextDecoder)('utf-8', options);

export const toUtf8 = (text: string): Uint8Array<ArrayBuffer> => new (classes().TextEncoder)().encode(text);
