// Names from files and addresses, made safe to show.

/** Control characters, line separators, bidirectional controls and unpaired surrogates. */
const controls = /[\p{Cc}\p{Zl}\p{Zp}\p{Cs}\p{Bidi_Control}]/gu;

const escaped = (text: string): string => text.replace(controls, (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, '0')}`);

/** The first `most` UTF-16 units, without half of a surrogate pair, and "…" if there are more. */
const shortened = (text: string, most: number): string => (text.length > most ? `${text.slice(0, most).replace(/[\ud800-\udbff]$/, '')}…` : text);

/** At most `most` characters of a text, with escapes such as "\u202e" for control characters. */
export const printable = (text: string, most = 80): string => escaped(shortened(text, most));

/** Like printable(), in quotation marks, with the escapes of JSON. */
export const quoted = (text: string, most = 80): string => escaped(JSON.stringify(shortened(text, most)));
