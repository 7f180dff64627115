// The folder of the visitor's own model in the origin's private file system.

export const folder = 'own-model';

/**
 * Throws if there is no private file system: in private windows of some browsers, and on pages loaded over plain HTTP.
 */
export async function storage(): Promise<FileSystemDirectoryHandle> {
  if (!(navigator.storage as StorageManager | undefined)?.getDirectory) throw new Error('this page has no storage for files.');
  return navigator.storage.getDirectory();
}

/** Throws if no model is kept. */
export const keptFolder = async (): Promise<FileSystemDirectoryHandle> => (await storage()).getDirectoryHandle(folder);
