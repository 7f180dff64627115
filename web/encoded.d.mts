/** Writes a `.br` and a `.gz` file beside each file of a folder that compresses well. */
export function compressFolder(folder: string): Promise<void>;
