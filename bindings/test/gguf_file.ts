// Writes GGUF files, as llama.cpp's converter writes them.

import { readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { readSafetensors } from 'multihead';

type Value = number | boolean | string | readonly (number | string)[];

/** Little-endian bytes of numbers and texts. */
class Writer {
  readonly #parts: Buffer[] = [];

  u32(number: number): this {
    const bytes = Buffer.alloc(4);
    bytes.writeUInt32LE(number);
    this.#parts.push(bytes);
    return this;
  }
  u64(number: number): this {
    return this.u32(number % 2 ** 32).u32(Math.floor(number / 2 ** 32));
  }
  f32(number: number): this {
    const bytes = Buffer.alloc(4);
    bytes.writeFloatLE(number);
    this.#parts.push(bytes);
    return this;
  }
  text(text: string): this {
    const bytes = Buffer.from(text);
    this.u64(bytes.length).#parts.push(bytes);
    return this;
  }
  bytes(): Buffer {
    return Buffer.concat(this.#parts);
  }

  /** A setting's type and value: u32 for whole numbers, f32 for others. */
  value(value: Value): this {
    if (typeof value === 'boolean') {
      this.u32(7).#parts.push(Buffer.from([Number(value)]));
      return this;
    }
    if (typeof value === 'string') return this.u32(8).text(value);
    if (typeof value === 'number') return Number.isInteger(value) ? this.u32(4).u32(value) : this.u32(6).f32(value);
    const isText = typeof value[0] === 'string';
    const isWhole = value.every(Number.isInteger);
    this.u32(9)
      .u32(isText ? 8 : isWhole ? 5 : 6)
      .u64(value.length);
    for (const each of value) {
      if (isText) this.text(each as string);
      else if (isWhole) this.u32(each as number);
      else this.f32(each as number);
    }
    return this;
  }
}

export interface GgufTensor {
  readonly name: string;
  readonly shape: readonly number[];
  /** 0 for F32. */
  readonly type?: number;
  readonly data: Float32Array | Uint8Array;
}

/** A file; each tensor at a multiple of `alignment` bytes. */
export function ggufFile(settings: Record<string, Value>, tensors: readonly GgufTensor[], version = 3): Uint8Array<ArrayBuffer> {
  const alignment = 32;
  const padded = (bytes: Buffer): Buffer => Buffer.concat([bytes, Buffer.alloc((alignment - (bytes.length % alignment)) % alignment)]);
  const header = new Writer().u64(tensors.length).u64(Object.keys(settings).length);
  for (const [name, value] of Object.entries(settings)) header.text(name).value(value);
  const parts: Buffer[] = [];
  let offset = 0;
  for (const { name, shape, type = 0, data } of tensors) {
    header.text(name).u32(shape.length);
    for (const extent of [...shape].reverse()) header.u64(extent);
    header.u32(type).u64(offset);
    const bytes = padded(Buffer.from(data.buffer, data.byteOffset, data.byteLength));
    parts.push(bytes);
    offset += bytes.length;
  }
  return new Uint8Array(Buffer.concat([padded(Buffer.concat([Buffer.from('GGUF'), new Writer().u32(version).bytes(), header.bytes()])), ...parts]));
}

const names: readonly (readonly [from: string, to: string])[] = [
  ['model.layers.', 'blk.'],
  ['model.embed_tokens', 'token_embd'],
  ['model.norm', 'output_norm'],
  ['lm_head', 'output'],
  ['self_attn.q_proj', 'attn_q'],
  ['self_attn.k_proj', 'attn_k'],
  ['self_attn.v_proj', 'attn_v'],
  ['self_attn.o_proj', 'attn_output'],
  ['self_attn.q_norm', 'attn_q_norm'],
  ['self_attn.k_norm', 'attn_k_norm'],
  ['mlp.gate_proj', 'ffn_gate'],
  ['mlp.up_proj', 'ffn_up'],
  ['mlp.down_proj', 'ffn_down'],
  ['input_layernorm', 'attn_norm'],
  ['post_attention_layernorm', 'ffn_norm'],
];

/** The settings and tensors of a golden model of Llama's or Qwen's kind. */
export function convertedModel(folder: string): { settings: Record<string, Value>; tensors: GgufTensor[] } {
  const config = JSON.parse(readFileSync(join(folder, 'config.json'), 'utf8')) as Record<string, Value>;
  const kind = config['model_type'] as string;
  const [heads, width] = [config['num_attention_heads'] as number, config['hidden_size'] as number];
  const headDim = (config['head_dim'] as number | undefined) ?? width / heads;
  const rope = config['rope_parameters'] as unknown as Record<string, number>;
  const settings: Record<string, Value> = {
    'general.architecture': kind,
    ...Object.fromEntries(
      Object.entries({
        context_length: config['max_position_embeddings'],
        embedding_length: width,
        block_count: config['num_hidden_layers'],
        feed_forward_length: config['intermediate_size'],
        'attention.head_count': heads,
        'attention.head_count_kv': config['num_key_value_heads'],
        'attention.key_length': headDim,
        'attention.value_length': headDim,
        'attention.layer_norm_rms_epsilon': config['rms_norm_eps'],
        'rope.freq_base': rope['rope_theta'],
      }).map(([name, value]) => [`${kind}.${name}`, value as Value]),
    ),
  };
  const tensors = readdirSync(folder)
    .filter((name) => name.startsWith('model') && name.endsWith('.safetensors'))
    .flatMap((file) => Object.entries(readSafetensors(readFileSync(join(folder, file))).tensors))
    .map(([name, { dtype, shape, data }]): GgufTensor => {
      // Of BF16 the first half of an F32.
      const numbers = dtype === 'f32' ? (data as Float32Array) : new Float32Array(Uint32Array.from(data as Uint16Array, (bits) => bits << 16).buffer);
      let own = name;
      for (const [from, to] of names) own = own.replace(from, to);
      const turned = kind === 'llama' && /\.attn_[qk]\.weight$/.test(own);
      if (!turned) return { name: own, shape, data: numbers };
      // Rows that are rotated together become neighbours.
      const columns = shape[1] as number;
      const rows = new Float32Array(numbers.length);
      for (let row = 0; row < (shape[0] as number); row += 1) {
        const at = row % headDim;
        const from = row - at + Math.floor(at / 2) + (at % 2) * (headDim / 2);
        rows.set(numbers.subarray(from * columns, (from + 1) * columns), row * columns);
      }
      return { name: own, shape, data: rows };
    });
  if (rope['low_freq_factor'] !== undefined) {
    const { factor, low_freq_factor: low, high_freq_factor: high, original_max_position_embeddings: before } = rope as Record<string, number>;
    const factors = Float32Array.from({ length: headDim / 2 }, (_, pair) => {
      const length = 2 * Math.PI * (rope['rope_theta'] as number) ** ((2 * pair) / headDim);
      const smooth = ((before as number) / length - (low as number)) / ((high as number) - (low as number));
      if (length < (before as number) / (high as number)) return 1;
      return length > (before as number) / (low as number) ? (factor as number) : 1 / ((1 - smooth) / (factor as number) + smooth);
    });
    tensors.splice(3, 0, { name: 'rope_freqs.weight', shape: [factors.length], data: factors });
  }
  return { settings, tensors };
}
