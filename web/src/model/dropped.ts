// The files that were chosen in a form or dropped on the page, with their paths.

import type { GivenFile } from './messages.js';

/** A visitor may drop the folder of a whole disk: more files than these are not looked at. */
const mostFiles = 2000;

export const chosenFiles = (list: Iterable<File>): GivenFile[] => [...list].map((file) => ({ path: file.webkitRelativePath || file.name, file }));

/** The contents of a drop, which the browser forgets once it has handled the event. */
export interface Dropped {
  readonly entries: readonly (FileSystemEntry | null | undefined)[];
  readonly files: readonly File[];
}

export async function droppedFiles({ entries, files }: Dropped): Promise<GivenFile[]> {
  if (!entries.some((entry) => entry?.isDirectory)) return chosenFiles(files);
  const found: GivenFile[] = [];
  const left = entries.filter((entry) => entry != null);
  while (left.length > 0 && found.length < mostFiles) {
    const entry = left.shift()!;
    const path = entry.fullPath.replace(/^\//, '');
    if (entry.isFile) found.push({ path, file: await fileOf(entry as FileSystemFileEntry) });
    else left.push(...(await entriesOf(entry as FileSystemDirectoryEntry)));
  }
  return found;
}

const fileOf = (entry: FileSystemFileEntry): Promise<File> => new Promise((resolve, reject) => entry.file(resolve, reject));

/** readEntries() gives a part of a folder's entries, and none at the end. */
async function entriesOf(folder: FileSystemDirectoryEntry): Promise<FileSystemEntry[]> {
  const reader = folder.createReader();
  const all: FileSystemEntry[] = [];
  for (;;) {
    const some = await new Promise<FileSystemEntry[]>((resolve, reject) => reader.readEntries(resolve, reject));
    if (some.length === 0 || all.length > mostFiles) return all;
    all.push(...some);
  }
}
