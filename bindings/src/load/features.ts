// Detects which SIMD build the engine can run. An engine rejects a module with even one unknown
// instruction, so before loading, a probe module of one function is validated for each feature.

import { MultiheadError } from '../runtime/errors.js';
import type { Backend, Simd } from '../types/index.js';

/** A module with (func (param v128) (result v128) …) of these instructions. */
const probeOf = (instructions: readonly number[]): Uint8Array<ArrayBuffer> =>
  new Uint8Array([
    ...[0x00, 0x61, 0x73, 0x6d], // magic: "\0asm"
    ...[0x01, 0x00, 0x00, 0x00], // binary format version 1
    ...[0x01, 0x06, 0x01], // type section, 6 bytes, 1 type:
    ...[0x60, 0x01, 0x7b, 0x01, 0x7b], //   (func (param v128) (result v128))
    ...[0x03, 0x02, 0x01, 0x00], // function section, 2 bytes, 1 function, of type 0
    ...[0x0a, instructions.length + 4, 0x01], // code section, 1 body:
    ...[instructions.length + 2, 0x00], //   no locals
    ...[...instructions, 0x0b], //   and an end
  ]);

const get = [0x20, 0x00]; // local.get 0
/** f32x4.add: SIMD prefix, opcode 0xe4 as LEB128. */
export const simd128Probe = /* @__PURE__ */ probeOf([...get, ...get, 0xfd, 0xe4, 0x01]);
/** f32x4.relaxed_madd: SIMD prefix, opcode 0x105 as LEB128. */
export const relaxedProbe = /* @__PURE__ */ probeOf([...get, ...get, ...get, 0xfd, 0x85, 0x02]);

type SimdChoice = Pick<Backend, 'simd' | 'why'>;

/**
 * Throws `E_LOAD` if the engine cannot run the wanted build, or neither build.
 *
 * @param hasRelaxed whether there is a .wasm of the relaxed build
 */
export function chooseSimd(wanted: Simd | 'auto', hasRelaxed = true): SimdChoice {
  if (typeof WebAssembly !== 'object' || !WebAssembly.validate(simd128Probe)) {
    throw new MultiheadError('E_LOAD', {
      argument: 'WebAssembly',
      expected: 'an engine with 128-bit SIMD (browsers since 2023, Node 20.19 and later)',
      got: 'an engine without SIMD',
      message: 'WebAssembly SIMD is missing: multihead needs a browser of 2023 or later, or Node 20.19',
    });
  }
  if (wanted === 'simd128') return { simd: wanted, why: 'requested with { simd: "simd128" }' };

  if (!hasRelaxed) {
    const why = 'the code contains this build alone, which every engine with SIMD can run';
    if (wanted === 'auto') return { simd: 'simd128', why };
    throw new MultiheadError('E_LOAD', {
      argument: 'simd',
      expected: '"auto" or "simd128", or wasm with the file of the relaxed build',
      got: '"relaxed"',
      message: 'simd: "relaxed" needs multihead-relaxed.wasm, but the code contains only the simd128 build: give load() the file as wasm',
    });
  }
  const relaxed = WebAssembly.validate(relaxedProbe);
  if (wanted === 'relaxed') {
    if (relaxed) return { simd: wanted, why: 'requested with { simd: "relaxed" }' };
    throw new MultiheadError('E_LOAD', {
      argument: 'simd',
      expected: '"auto" or "simd128"',
      got: '"relaxed"',
      message: 'simd: "relaxed" needs an engine with relaxed SIMD, which this one lacks; use "auto" or "simd128"',
    });
  }
  const slow = relaxed ? v8BelowThirteen() : undefined;
  if (slow !== undefined) {
    return { simd: 'simd128', why: `${slow} runs this code faster without relaxed SIMD` };
  }
  return relaxed
    ? { simd: 'relaxed', why: 'the engine has f32x4.relaxed_madd, a fused multiply-add' }
    : { simd: 'simd128', why: 'the engine has SIMD, but not f32x4.relaxed_madd' };
}

/**
 * Returns the build that `load()` chooses in this engine by default, and why. Does not load it, so that a page can
 * fetch the file before it calls `load()`. `multihead/inline` has only the simd128 build.
 *
 * @throws {MultiheadError} `E_LOAD` if the engine has no WebAssembly SIMD
 */
export const preferredBuild = (): Pick<Backend, 'simd' | 'why'> => chooseSimd('auto');

/**
 * Names this engine if it is V8 below 13. That version keeps the accumulators of a relaxed SIMD tile in memory instead
 * of registers: in Node 22, gpt2-1k took 1.3 to 1.4 times as long as with simd128; in Node 24 and 26 it takes 0.8
 * times.
 */
function v8BelowThirteen(): string | undefined {
  const { process, navigator } = globalThis as {
    process?: { versions?: { v8?: string } };
    navigator?: { userAgent?: string };
  };
  const v8 = process?.versions?.v8;
  if (v8 !== undefined) return parseInt(v8, 10) < 13 ? `V8 ${v8.split('-')[0]}` : undefined;
  const chromium = /Chrom(?:e|ium)\/(\d+)/.exec(navigator?.userAgent ?? '')?.[1];
  return chromium !== undefined && Number(chromium) < 130 ? `Chromium ${chromium}` : undefined;
}
