// Files that are too large to try.

/** A WebAssembly memory ends at 4 GB, and the file is in the worker beside it while it is read. */
export const mostBytes = 1.5e9;

/** Why a file is not even read; empty if it is. */
export function refusalOf({ name, size }: { readonly name: string; readonly size: number }): string {
  const gigabytes = (bytes: number) => `${(bytes / 1e9).toFixed(2)} GB`;
  return size > mostBytes ? `${name} has ${gigabytes(size)}; at most ${gigabytes(mostBytes)} fit in a page.` : '';
}
