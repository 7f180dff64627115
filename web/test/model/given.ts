// The files of a model as the page has them.

import type { GivenFiles } from '../../src/model/messages.js';

/** Null leaves a file out. */
export type Contents = Readonly<Record<string, string | Uint8Array<ArrayBuffer> | null>>;

export const given = (contents: Contents, name = 'small'): GivenFiles => ({
  name,
  files: Object.entries(contents).flatMap(([path, content]) => (content === null ? [] : [{ path, file: new File([content], path) }])),
});
