// Limits on the size of a model's files and on its number of heads; names of files.

import { printable } from '../../../bindings/src/runtime/text.js';

/** Numbers of heads that a visitor can choose for a model. */
export const modelHeads: readonly number[] = Array.from({ length: 64 }, (_, i) => i + 1);

/** Largest file in bytes. A WebAssembly memory ends at 4 GB, and the worker also holds the file while it reads it. */
export const mostBytes = 1.5e9;

/** Maximum length of a file's name in the address. */
export const maxNameCharacters = 100;

/** The part of a model's file name that the address holds. */
export const nameInAddress = (file: { readonly name: string }): string => file.name.slice(0, maxNameCharacters);

/** Formats a size: "548 MB", "1.50 GB". */
export const formatBytes = (bytes: number): string =>
  bytes >= 1e9 ? `${(bytes / 1e9).toFixed(2)} GB` : bytes >= 1e6 ? `${(bytes / 1e6).toFixed(0)} MB` : `${(bytes / 1e3).toFixed(0)} kB`;

/** A file's name as the page shows it. */
export const shownName = (file: { readonly name: string }): string => printable(file.name);

/** Reason why a file is not even read; empty if it is read. */
export function refusalOf(file: { readonly name: string; readonly size: number }): string {
  return file.size > mostBytes ? `${shownName(file)} has ${formatBytes(file.size)}; at most ${formatBytes(mostBytes)} fit in a page.` : '';
}
