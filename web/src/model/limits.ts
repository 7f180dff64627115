// Files that are too large to try, names of files, and numbers of heads.

import { printable } from '../../../bindings/src/printable.js';

/** Numbers of heads that a model can be given. */
export const modelHeads: readonly number[] = Array.from({ length: 64 }, (_, i) => i + 1);

/** A WebAssembly memory ends at 4 GB, and the file is in the worker beside it while it is read. */
export const mostBytes = 1.5e9;

/** Of a file's name, in the address. */
export const maxNameCharacters = 100;

/** What the address says of a model's file. */
export const nameInAddress = (file: { readonly name: string }): string => file.name.slice(0, maxNameCharacters);

/** "548 MB", "1.50 GB" */
export const formatBytes = (bytes: number): string =>
  bytes >= 1e9 ? `${(bytes / 1e9).toFixed(2)} GB` : bytes >= 1e6 ? `${(bytes / 1e6).toFixed(0)} MB` : `${(bytes / 1e3).toFixed(0)} kB`;

/** A file's name as the page shows it. */
export const shownName = (file: { readonly name: string }): string => printable(file.name);

/** Why a file is not even read; empty if it is. */
export function refusalOf(file: { readonly name: string; readonly size: number }): string {
  return file.size > mostBytes ? `${shownName(file)} has ${formatBytes(file.size)}; at most ${formatBytes(mostBytes)} fit in a page.` : '';
}
