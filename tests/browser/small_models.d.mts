export function goldenFiles(name: string): Record<string, Uint8Array<ArrayBuffer>>;
export function bytePairTokenizer(words: readonly string[], mostTokens?: number): string;
export function wordTokenizer(words: readonly string[]): string;

/** The configuration of the GPT-2 with weights of a formula, its tensors, and a safetensors file of such tensors. */
export const gpt2Config: string;
export function gpt2Tensors(): Record<string, { shape: number[]; data: Float32Array }>;
export function safetensors(tensors: Record<string, { shape: number[]; data: Float32Array }>): Uint8Array<ArrayBuffer>;
