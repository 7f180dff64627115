export function goldenFiles(name: string): Record<string, Uint8Array<ArrayBuffer>>;
export function bytePairTokenizer(words: readonly string[], mostTokens?: number): string;
export function wordTokenizer(words: readonly string[]): string;
