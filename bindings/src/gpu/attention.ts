// Attention on the GPU: the readers and checks of the CPU's calls, and the core's plan.

import { attentionInputs, attentionNames } from '../attention/attention.js';
import { checkRows, headsSpan, stageCode } from '../attention/capture.js';
import { linearOperands } from '../attention/linear.js';
import { attentionOptions, attentionSchema, ropeRecord, rotationNames } from '../attention/options.js';
import { outputShapes, prepareOutputs, pushCaptures } from '../attention/outputs.js';
import { checkRope, elsewhere as notInVarlen, readPacked, varlenNames } from '../attention/varlen.js';
import * as wire from '../generated/gpu_wire.js';
import { pushCapture } from '../generated/wire.js';
import { optionError } from '../runtime/errors.js';
import { checkRank, noSpan } from '../runtime/operands.js';
import { type Names, plain, readOptions, without } from '../runtime/options.js';
import { floatDTypes } from '../runtime/tensor.js';
import type {
  AttentionOptions,
  AttentionReturn,
  GpuExplanation,
  GpuScoresOptions,
  LinearOptions,
  RopeRotation,
  ScoresOptions,
  VarlenOptions,
} from '../types/index.js';
import { type GpuOperands, gpuCall } from './operands.js';
import type { Plan } from './plan.js';
import type { GpuRuntime } from './runtime.js';
import { gpuCoreOf } from './tensor.js';

export const gpuReturns: readonly AttentionReturn[] = ['lse', 'weights'];
export const onCpu = { dropout: 'the GPU has no dropout: it is for training, which is on the CPU' };
const gpuNames = without(attentionNames, onCpu) as typeof attentionNames;
const gpuVarlenNames = without(varlenNames, onCpu) as typeof varlenNames;
const scoresNames = {
  ...without(attentionSchema, onCpu),
  ...{ stage: plain, heads: plain, rows: plain },
} satisfies Names<Omit<ScoresOptions, 'head' | 'chunk'>>;

/** Writes the arguments of a call of attention; returns its results, which a plan fills. */
function written(gpu: GpuRuntime, operands: GpuOperands, [q, k, v]: readonly unknown[], options: AttentionOptions): object {
  const { query, key, value, extents, valueDim } = attentionInputs(operands, q as never, k as never, v as never);
  const masking = attentionOptions(options, operands, extents);
  const outputs = prepareOutputs(options, gpuReturns, outputShapes(extents, valueDim), operands);
  pushCaptures(gpu.planner, outputs, operands);
  wire.gpuAttention(gpu.planner.args, gpu.limits(operands), query, key, value, masking, outputs.record);
  return outputs.result;
}

export function gpuAttention(gpu: GpuRuntime, inputs: readonly unknown[], given: object = {}): object {
  const options = readOptions(given as AttentionOptions, gpuNames, 'attention', onCpu);
  return gpuCall(gpu, (operands) => {
    const result = written(gpu, operands, inputs, options);
    operands.play(() => gpu.planner.raw.gpuAttention());
    return result;
  });
}

export function explain(gpu: GpuRuntime, inputs: readonly unknown[], given: object = {}): GpuExplanation {
  const options = readOptions(given as AttentionOptions, gpuNames, 'explain', onCpu);
  const result = gpuCall(gpu, (operands) => {
    const outputs = written(gpu, operands, inputs, options) as { [Symbol.dispose](): void };
    return { outputs, plan: operands.plan(() => gpu.planner.raw.gpuAttention()) };
  });
  result.outputs[Symbol.dispose]();
  return explanationOf(gpu, result.plan);
}

function explanationOf({ player }: GpuRuntime, { dispatches, scratch, data }: Plan): GpuExplanation {
  return {
    dispatches: dispatches.map(({ kernel, constants, groups, bindings }) => ({
      kernel: player.pipelines.nameOf(kernel),
      constants,
      groups,
      bytes: bindings.map(({ words }) => 4 * words),
    })),
    scratch: 4 * scratch.reduce((sum, words) => sum + words, data.length),
  };
}

export function gpuAttentionVarlen(gpu: GpuRuntime, [q, k, v]: readonly unknown[], given: object): object {
  const options = readOptions(given as VarlenOptions, gpuVarlenNames, 'attentionVarlen', { ...notInVarlen, ...onCpu });
  checkRope(options);
  return gpuCall(gpu, (operands) => {
    const packed = readPacked(gpu.planner, operands, { q, k, v } as never, options);
    const { query, key, value, cuQ, cuK, masking, extents } = packed;
    const { queries, heads } = extents;
    const [, , valueDim = 0] = value.shape;
    const shapes = { out: [queries, heads, valueDim], lse: [heads, queries], scores: [] };
    const outputs = prepareOutputs(options, ['lse'], shapes, operands);
    const { args, raw } = gpu.planner;
    wire.gpuAttentionVarlen(args, gpu.limits(operands), query, key, value, cuQ, cuK, masking, outputs.record);
    operands.play(() => raw.gpuAttentionVarlen());
    return outputs.result;
  });
}

export function gpuScores(gpu: GpuRuntime, [q, k]: readonly unknown[], given: GpuScoresOptions): unknown {
  const options = readOptions(given as ScoresOptions, scoresNames as never, 'attentionScores', onCpu) as ScoresOptions;
  const stage = stageCode(options.stage, 'stage');
  return gpuCall(gpu, (operands) => {
    const query = operands.input(q, floatDTypes, 'q');
    const key = operands.input(k, floatDTypes, 'k');
    checkRank(query, '(B, H_q, N_q, d_k)', 'q');
    checkRank(key, '(B, H_kv, N_k, d_k)', 'k');
    const { 0: batch = 0, 1: heads = 0, 2: queries = 0, 3: width = 0 } = query.shape;
    const keys = key.shape[2] ?? 0;
    const masking = attentionOptions(options, operands, { batch, heads, queries, keys, width });
    const [firstRow, rows] = checkRows(options.rows, queries, 'rows');
    const chosen = options.heads === undefined ? noSpan : headsSpan(options.heads, heads, operands, 'heads');
    const scores = operands.output([batch, options.heads?.length ?? heads, rows, keys], 'f32', 'scores');
    const { args, raw } = gpu.planner;
    pushCapture(args, { stage, out: operands.operandOf(scores), heads: chosen, firstRow });
    operands.run(() => raw.pushCapture());
    wire.gpuScores(args, gpu.limits(operands), query, key, masking);
    operands.play(() => raw.gpuScores());
    return scores;
  });
}

export function gpuRotate(gpu: GpuRuntime, x: unknown, positions: unknown, rope: RopeRotation): unknown {
  const record = ropeRecord(readOptions(rope, rotationNames, 'rope'));
  return gpuCall(gpu, (operands) => {
    const input = operands.input(x, ['f32'], 'x');
    checkRank(input, '(B, H, N, d)', 'x');
    const span = operands.span(positions, 'i32', 'positions');
    const y = operands.output(input.shape, 'f32', 'rotate');
    const { args, raw } = gpu.planner;
    wire.gpuRotate(args, gpu.limits(operands), input, span, record, operands.operandOf(y));
    operands.play(() => raw.gpuRotate());
    return y;
  });
}

export function gpuLinear(gpu: GpuRuntime, x: unknown, weight: unknown, given: object = {}): unknown {
  const options = readOptions(given as LinearOptions, { bias: plain, out: plain }, 'linear');
  // All axes of x but the last become one.
  for (const [name, tensor] of Object.entries({ x, weight, ...options })) {
    if (gpuCoreOf(tensor)?.strides !== undefined) throw optionError(name, 'a tensor without gaps', 'one with strides');
  }
  return gpuCall(gpu, (operands) => {
    const { matrix, bias, y, inputRows, outRows } = linearOperands(operands, x, weight, options);
    const { args, raw } = gpu.planner;
    wire.gpuLinear(args, gpu.limits(operands), inputRows, matrix, bias, outRows);
    operands.play(() => raw.gpuLinear());
    return y;
  });
}
