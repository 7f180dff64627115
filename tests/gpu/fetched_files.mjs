// What the golden cases need of node:fs/promises and node:path, in a page: the server of chromium.mjs has the files, and lists folders.

async function fetched(path, query = '', method = 'GET') {
  const response = await fetch(path + query, { method });
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response;
}

export const join = (...parts) => parts.join('/').replaceAll(/\/+/g, '/');
export const basename = (path) => path.split('/').at(-1);

export async function readFile(path, encoding) {
  const response = await fetched(path);
  return encoding === undefined ? new Uint8Array(await response.arrayBuffer()) : response.text();
}

/** Rejects for a folder. */
export const stat = async (path) => fetched(path, '', 'HEAD').then(() => ({ isFile: () => true }));

export async function readdir(path, { recursive = false, withFileTypes = false } = {}) {
  const entries = await (await fetched(path, recursive ? '?list=all' : '?list')).json();
  return withFileTypes ? entries.map(({ name, folder }) => ({ name, isDirectory: () => folder })) : entries.map(({ name }) => name);
}
