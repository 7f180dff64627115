import { describe, expect, it } from 'vitest';
import { notANumberIn, problemOf } from '../../src/model/problems.js';

describe('problemOf', () => {
  it.each([
    ['safetensors header: expected at most 30 bytes, got 8031924123371070000 bytes', 'a.safetensors is not a safetensors file.'],
    [
      'h.1.mlp.c_proj.weight: expected data_offsets within 504952 bytes, got [443648, 509184]',
      'a.safetensors ends too early. Perhaps the download was cut off.',
    ],
    ['stateDict: expected a matrix wte.weight, got none', 'a.safetensors is not a GPT-2: it has no wte.weight.'],
    [
      'stateDict: expected the 28 parameters of this module, got missing: h.1.attn.c_attn.weight (64, 192)',
      'a.safetensors lacks h.1.attn.c_attn.weight (64 × 192).',
    ],
    ['out of memory', 'a.safetensors cannot be used: out of memory'],
  ])('says "%s" in the words of a visitor', (message, said) => {
    expect(problemOf('a.safetensors', message)).toBe(said);
  });
});

describe('notANumberIn', () => {
  it('names the first tensor with NaN, and their number', () => {
    const whole = { data: Float32Array.of(1, 2) };
    expect(notANumberIn({ whole })).toBeUndefined();
    expect(notANumberIn({ whole, broken: { data: Float32Array.of(NaN, 2, NaN) } })).toBe('broken has 2 NaN');
  });
});
