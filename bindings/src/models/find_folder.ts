// The folder of any source: a name on the hub, or what folder.ts opens.

import { filesOf, pathOf } from '../load/source.js';
import { checkSignal } from '../runtime/abort.js';
import { optionError } from '../runtime/errors.js';
import { checkCallback, checkFlag } from '../runtime/options.js';
import { describe } from '../runtime/tensor.js';
import type { ModelSource, OpenModelOptions } from '../types/models.js';
import { cleanPath, type Folder, folderOf } from './folder.js';

export type HubOptions = Pick<OpenModelOptions, 'revision' | 'host' | 'local' | 'onFetch'> & { readonly signal?: AbortSignal | undefined };

/** A name, such as ORG/NAME, and the path of a GGUF file behind it. */
export const hubName = /^(\w[\w.-]*\/\w[\w.-]*)(?:\/(.+\.gguf))?$/;

/** A variable of the environment; undefined in a page. */
export const environment = (name: string): string | undefined =>
  (globalThis as { process?: { env?: Record<string, string | undefined> } }).process?.env?.[name];

const defaultHost = (): string => environment('HF_ENDPOINT') || 'https://huggingface.co';

/** A path that exists counts before a name. Throws `E_OPTION` for another kind of source and wrong options. */
export async function findFolder(source: ModelSource, options: HubOptions): Promise<Folder> {
  const { revision = 'main', host = defaultHost(), local = false, signal, onFetch } = options;
  const refuse = (argument: string, expected: string, got: unknown): void => {
    throw optionError(argument, expected, describe(got));
  };
  checkCallback(onFetch, 'onFetch');
  // In an address and a path, dots would name another folder.
  if (typeof revision !== 'string' || /^\.*$/.test(revision)) refuse('revision', 'a branch, a tag or a commit', revision);
  if (!/^https?:/.test(host)) refuse('host', 'an address such as "https://huggingface.co"', host);
  checkFlag(local, 'local');
  checkSignal(signal);
  const address = typeof source === 'string' || source instanceof URL ? String(source) : undefined;
  const files = address === undefined ? undefined : filesOf(address);
  if (address !== undefined && hubName.test(address)) {
    const isThere = await files?.access(pathOf(address)).then(
      () => true,
      () => false,
    );
    const gguf = hubName.exec(address)?.[2] ?? '';
    if (!isThere && cleanPath(gguf) !== gguf) refuse('source', 'the path of a file below ORG/NAME', address);
    if (!isThere) return (await import('./hub.js')).hubFolder(address, revision, host, options);
  }
  const folder = await folderOf(source, signal);
  if (!local || !folder.connects) return folder;
  throw optionError('local', 'none for an address, whose files are not kept', 'true');
}
