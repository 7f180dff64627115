// Made by tables.mjs out of wire.inc, which explains it.

import type { Arguments, Int32, Int64, Operand, Results, Span, Uint32, Whole64 } from './arguments.js';
import type { Activation, Alignment, DType, ExperimentKind, KVCacheConfigLayout, LatentForm, LearningRateDecay, Norm, Optimizer, ParameterNames, PositionKind, Precision, RopeStyle, ScoreStage } from './tables.js';

/** multihead::Rope */
export interface Rope {
  style: RopeStyle;
  base: number;
  rotaryDim: Int64;
}

function writeRope(to: Arguments, from: Readonly<Rope>): void {
  to.number(from.style);
  to.number(from.base);
  to.number(from.rotaryDim);
}

/** multihead::AttentionOptions */
export interface AttentionOptions {
  mask: Operand<'bool'> | undefined;
  bias: Operand<'f32'> | undefined;
  scale: number | undefined;
  causalAlignment: Alignment;
  causalOffset: Int64;
  windowLeft: Int64;
  windowRight: Int64;
  windowAlignment: Alignment;
  windowOffset: Int64;
  kvLengths: Span<'i32'>;
  alibiSlopes: Span<'f32'>;
  softcap: number;
  sinks: Span<'f32'>;
  qkNorm: boolean;
  qGain: Span<'f32'>;
  kGain: Span<'f32'>;
  qkNormEps: number;
  rope: Readonly<Rope>;
  qPositions: Span<'i32'>;
  kPositions: Span<'i32'>;
  dropoutProbability: number;
  dropoutSeed: Whole64;
  precision: Precision;
}

function writeAttentionOptions(to: Arguments, from: Readonly<AttentionOptions>): void {
  to.tensor(from.mask);
  to.tensor(from.bias);
  to.optional(from.scale);
  to.number(from.causalAlignment);
  to.number(from.causalOffset);
  to.number(from.windowLeft);
  to.number(from.windowRight);
  to.number(from.windowAlignment);
  to.number(from.windowOffset);
  to.span(from.kvLengths);
  to.span(from.alibiSlopes);
  to.number(from.softcap);
  to.span(from.sinks);
  to.flag(from.qkNorm);
  to.span(from.qGain);
  to.span(from.kGain);
  to.number(from.qkNormEps);
  writeRope(to, from.rope);
  to.span(from.qPositions);
  to.span(from.kPositions);
  to.number(from.dropoutProbability);
  to.whole64(from.dropoutSeed);
  to.number(from.precision);
}

/** multihead::AttentionOutputs */
export interface AttentionOutputs {
  out: Operand | undefined;
  lse: Operand<'f32'> | undefined;
  weights: Operand<'f32'> | undefined;
  dropoutMask: Operand<'bool'> | undefined;
}

function writeAttentionOutputs(to: Arguments, from: Readonly<AttentionOutputs>): void {
  to.tensor(from.out);
  to.tensor(from.lse);
  to.tensor(from.weights);
  to.tensor(from.dropoutMask);
}

/** multihead::AttentionPart */
export interface AttentionPart {
  firstInMemory: Int64;
  firstHead: Int64;
  endHead: Int64;
  firstBlock: Int64;
  endBlock: Int64;
  packed: boolean;
}

function writeAttentionPart(to: Arguments, from: Readonly<AttentionPart>): void {
  to.number(from.firstInMemory);
  to.number(from.firstHead);
  to.number(from.endHead);
  to.number(from.firstBlock);
  to.number(from.endBlock);
  to.flag(from.packed);
}

/** multihead::BackwardPart */
export interface BackwardPart {
  firstBatch: Int64;
  firstHead: Int64;
  jobs: Int64;
}

function writeBackwardPart(to: Arguments, from: Readonly<BackwardPart>): void {
  to.number(from.firstBatch);
  to.number(from.firstHead);
  to.number(from.jobs);
}

/** multihead::AttentionResults */
export interface AttentionResults {
  out: Operand | undefined;
  lse: Operand<'f32'> | undefined;
  checkLse: boolean;
}

function writeAttentionResults(to: Arguments, from: Readonly<AttentionResults>): void {
  to.tensor(from.out);
  to.tensor(from.lse);
  to.flag(from.checkLse);
}

/** multihead::AttentionGradients */
export interface AttentionGradients {
  dQ: Operand<'f32'> | undefined;
  dK: Operand<'f32'> | undefined;
  dV: Operand<'f32'> | undefined;
  dBias: Operand<'f32'> | undefined;
  dSinks: Span<'f32'>;
  dQGain: Span<'f32'>;
  dKGain: Span<'f32'>;
}

function writeAttentionGradients(to: Arguments, from: Readonly<AttentionGradients>): void {
  to.tensor(from.dQ);
  to.tensor(from.dK);
  to.tensor(from.dV);
  to.tensor(from.dBias);
  to.span(from.dSinks);
  to.span(from.dQGain);
  to.span(from.dKGain);
}

/** multihead::ScoreCapture */
export interface ScoreCapture {
  stage: ScoreStage;
  out: Operand<'f32'> | undefined;
  heads: Span<'i32'>;
  firstRow: Int64;
}

function writeScoreCapture(to: Arguments, from: Readonly<ScoreCapture>): void {
  to.number(from.stage);
  to.tensor(from.out);
  to.span(from.heads);
  to.number(from.firstRow);
}

/** multihead::LatentAttentionInputs */
export interface LatentAttentionInputs {
  qNope: Operand<'f32'> | undefined;
  qRope: Operand<'f32'> | undefined;
  latent: Operand<'f32'> | undefined;
  kRope: Operand<'f32'> | undefined;
  wUk: Operand<'f32'> | undefined;
  wUv: Operand<'f32'> | undefined;
}

function writeLatentAttentionInputs(to: Arguments, from: Readonly<LatentAttentionInputs>): void {
  to.tensor(from.qNope);
  to.tensor(from.qRope);
  to.tensor(from.latent);
  to.tensor(from.kRope);
  to.tensor(from.wUk);
  to.tensor(from.wUv);
}

/** multihead::KVCacheConfig */
export interface KVCacheConfig {
  batch: Int64;
  numKvHeads: Int64;
  headDim: Int64;
  valueDim: Int64;
  capacity: Int64;
  layout: KVCacheConfigLayout;
  dtype: DType;
  pageSize: Int64;
  pages: Int64;
}

function writeKVCacheConfig(to: Arguments, from: Readonly<KVCacheConfig>): void {
  to.number(from.batch);
  to.number(from.numKvHeads);
  to.number(from.headDim);
  to.number(from.valueDim);
  to.number(from.capacity);
  to.number(from.layout);
  to.number(from.dtype);
  to.number(from.pageSize);
  to.number(from.pages);
}

/** multihead::MultiHeadAttentionConfig */
export interface MultiHeadAttentionConfig {
  embedDim: Int64;
  numHeads: Int64;
  headDim: Int64;
  numKvHeads: Int64;
  valueDim: Int64;
  kdim: Int64;
  vdim: Int64;
  outDim: Int64;
  bias: boolean;
  outProj: boolean;
  addBiasKv: boolean;
  addZeroAttn: boolean;
  batchFirst: boolean;
  sinks: boolean;
  qkNorm: boolean;
  qkNormEps: number;
  softcap: number;
  windowLeft: Int64;
  windowRight: Int64;
  rope: Readonly<Rope>;
  dropout: number;
  outDropout: number;
  kvLatentDim: Int64;
  qLatentDim: Int64;
  ropeHeadDim: Int64;
  latentNormEps: number;
}

function writeMultiHeadAttentionConfig(to: Arguments, from: Readonly<MultiHeadAttentionConfig>): void {
  to.number(from.embedDim);
  to.number(from.numHeads);
  to.number(from.headDim);
  to.number(from.numKvHeads);
  to.number(from.valueDim);
  to.number(from.kdim);
  to.number(from.vdim);
  to.number(from.outDim);
  to.flag(from.bias);
  to.flag(from.outProj);
  to.flag(from.addBiasKv);
  to.flag(from.addZeroAttn);
  to.flag(from.batchFirst);
  to.flag(from.sinks);
  to.flag(from.qkNorm);
  to.number(from.qkNormEps);
  to.number(from.softcap);
  to.number(from.windowLeft);
  to.number(from.windowRight);
  writeRope(to, from.rope);
  to.number(from.dropout);
  to.number(from.outDropout);
  to.number(from.kvLatentDim);
  to.number(from.qLatentDim);
  to.number(from.ropeHeadDim);
  to.number(from.latentNormEps);
}

/** multihead::MultiHeadAttentionInputs */
export interface MultiHeadAttentionInputs {
  query: Operand<'f32'> | undefined;
  key: Operand<'f32'> | undefined;
  value: Operand<'f32'> | undefined;
}

function writeMultiHeadAttentionInputs(to: Arguments, from: Readonly<MultiHeadAttentionInputs>): void {
  to.tensor(from.query);
  to.tensor(from.key);
  to.tensor(from.value);
}

/** multihead::MultiHeadAttentionOptions */
export interface MultiHeadAttentionOptions {
  attention: Readonly<AttentionOptions>;
  attnMaskBlocked: Operand<'bool'> | undefined;
  keyPaddingBlocked: Operand<'bool'> | undefined;
  keyPaddingBias: Operand<'f32'> | undefined;
  training: boolean;
  dropoutSeed: Whole64;
  headScales: Span<'f32'>;
  skipOutProj: boolean;
  temperature: number;
  scaleByEmbedDim: boolean;
}

function writeMultiHeadAttentionOptions(to: Arguments, from: Readonly<MultiHeadAttentionOptions>): void {
  writeAttentionOptions(to, from.attention);
  to.tensor(from.attnMaskBlocked);
  to.tensor(from.keyPaddingBlocked);
  to.tensor(from.keyPaddingBias);
  to.flag(from.training);
  to.whole64(from.dropoutSeed);
  to.span(from.headScales);
  to.flag(from.skipOutProj);
  to.number(from.temperature);
  to.flag(from.scaleByEmbedDim);
}

/** multihead::MultiHeadAttentionOutputs */
export interface MultiHeadAttentionOutputs {
  out: Operand<'f32'> | undefined;
  weights: Operand<'f32'> | undefined;
  meanWeights: Operand<'f32'> | undefined;
}

function writeMultiHeadAttentionOutputs(to: Arguments, from: Readonly<MultiHeadAttentionOutputs>): void {
  to.tensor(from.out);
  to.tensor(from.weights);
  to.tensor(from.meanWeights);
}

/** multihead::MultiHeadAttentionGradients */
export interface MultiHeadAttentionGradients {
  dQuery: Operand<'f32'> | undefined;
  dKey: Operand<'f32'> | undefined;
  dValue: Operand<'f32'> | undefined;
}

function writeMultiHeadAttentionGradients(to: Arguments, from: Readonly<MultiHeadAttentionGradients>): void {
  to.tensor(from.dQuery);
  to.tensor(from.dKey);
  to.tensor(from.dValue);
}

/** multihead::TransformerBlockConfig */
export interface TransformerBlockConfig {
  attention: Readonly<MultiHeadAttentionConfig>;
  mlpDim: Int64;
  activation: Activation;
  gated: boolean;
  mlpBias: boolean;
  norm: Norm;
  normFirst: boolean;
  normEps: number;
  normAffine: boolean;
  residualDropout: number;
}

function writeTransformerBlockConfig(to: Arguments, from: Readonly<TransformerBlockConfig>): void {
  writeMultiHeadAttentionConfig(to, from.attention);
  to.number(from.mlpDim);
  to.number(from.activation);
  to.flag(from.gated);
  to.flag(from.mlpBias);
  to.number(from.norm);
  to.flag(from.normFirst);
  to.number(from.normEps);
  to.flag(from.normAffine);
  to.number(from.residualDropout);
}

/** multihead::TransformerBlockOutputs */
export interface TransformerBlockOutputs {
  out: Operand<'f32'> | undefined;
  attentionOut: Operand<'f32'> | undefined;
}

function writeTransformerBlockOutputs(to: Arguments, from: Readonly<TransformerBlockOutputs>): void {
  to.tensor(from.out);
  to.tensor(from.attentionOut);
}

/** multihead::TransformerConfig */
export interface TransformerConfig {
  block: Readonly<TransformerBlockConfig>;
  numLayers: Int64;
  vocabSize: Int64;
  maxPositions: Int64;
  finalNorm: boolean;
  tiedOutput: boolean;
  causal: boolean;
  numReadouts: Int64;
  embeddingDropout: number;
}

function writeTransformerConfig(to: Arguments, from: Readonly<TransformerConfig>): void {
  writeTransformerBlockConfig(to, from.block);
  to.number(from.numLayers);
  to.number(from.vocabSize);
  to.number(from.maxPositions);
  to.flag(from.finalNorm);
  to.flag(from.tiedOutput);
  to.flag(from.causal);
  to.number(from.numReadouts);
  to.number(from.embeddingDropout);
}

/** multihead::Initialization */
export interface Initialization {
  seed: Whole64;
  embedding: number;
  weight: number;
  residual: number;
  output: number;
}

function writeInitialization(to: Arguments, from: Readonly<Initialization>): void {
  to.whole64(from.seed);
  to.number(from.embedding);
  to.number(from.weight);
  to.number(from.residual);
  to.number(from.output);
}

/** multihead::TransformerOutputs */
export interface TransformerOutputs {
  logits: Operand<'f32'> | undefined;
  hidden: Operand<'f32'> | undefined;
}

function writeTransformerOutputs(to: Arguments, from: Readonly<TransformerOutputs>): void {
  to.tensor(from.logits);
  to.tensor(from.hidden);
}

/** multihead::TrainerOptions */
export interface TrainerOptions {
  optimizer: Optimizer;
  learningRate: number;
  beta1: number;
  beta2: number;
  eps: number;
  momentum: number;
  nesterov: boolean;
  weightDecay: number;
  warmupSteps: Int64;
  decay: LearningRateDecay;
  decaySteps: Int64;
  finalLearningRate: number;
  clipNorm: number;
  recompute: boolean;
  seed: Whole64;
}

function writeTrainerOptions(to: Arguments, from: Readonly<TrainerOptions>): void {
  to.number(from.optimizer);
  to.number(from.learningRate);
  to.number(from.beta1);
  to.number(from.beta2);
  to.number(from.eps);
  to.number(from.momentum);
  to.flag(from.nesterov);
  to.number(from.weightDecay);
  to.number(from.warmupSteps);
  to.number(from.decay);
  to.number(from.decaySteps);
  to.number(from.finalLearningRate);
  to.number(from.clipNorm);
  to.flag(from.recompute);
  to.whole64(from.seed);
}

/** multihead::ExperimentOptions */
export interface ExperimentOptions {
  kind: ExperimentKind;
  numHeads: Int64;
  numLayers: Int64;
  seed: Whole64;
  positions: PositionKind;
  steps: Int64;
  batch: Int64;
  learningRate: number;
  recompute: boolean;
}

function writeExperimentOptions(to: Arguments, from: Readonly<ExperimentOptions>): void {
  to.number(from.kind);
  to.number(from.numHeads);
  to.number(from.numLayers);
  to.whole64(from.seed);
  to.number(from.positions);
  to.number(from.steps);
  to.number(from.batch);
  to.number(from.learningRate);
  to.flag(from.recompute);
}

/** multihead::EvaluationOptions */
export interface EvaluationOptions {
  sequences: Int64;
  attention: boolean;
  ablation: boolean;
  headScales: Span<'f32'>;
}

function writeEvaluationOptions(to: Arguments, from: Readonly<EvaluationOptions>): void {
  to.number(from.sequences);
  to.flag(from.attention);
  to.flag(from.ablation);
  to.span(from.headScales);
}

/** multihead::HeadStatistics */
export interface HeadStatistics {
  entropy: Span<'f32'>;
  previousToken: Span<'f32'>;
  firstToken: Span<'f32'>;
  induction: Span<'f32'>;
}

function writeHeadStatistics(to: Arguments, from: Readonly<HeadStatistics>): void {
  to.span(from.entropy);
  to.span(from.previousToken);
  to.span(from.firstToken);
  to.span(from.induction);
}

/** multihead::bindings::AttentionCall */
export function attention(
  to: Arguments,
  q: Operand | undefined,
  k: Operand | undefined,
  v: Operand | undefined,
  options: Readonly<AttentionOptions>,
  outputs: Readonly<AttentionOutputs>,
): void {
  to.begin();
  to.tensor(q);
  to.tensor(k);
  to.tensor(v);
  writeAttentionOptions(to, options);
  writeAttentionOutputs(to, outputs);
}

/** multihead::bindings::AttentionPartCall */
export function attentionPart(
  to: Arguments,
  q: Operand | undefined,
  k: Operand | undefined,
  v: Operand | undefined,
  options: Readonly<AttentionOptions>,
  outputs: Readonly<AttentionOutputs>,
  part: Readonly<AttentionPart>,
): void {
  to.begin();
  to.tensor(q);
  to.tensor(k);
  to.tensor(v);
  writeAttentionOptions(to, options);
  writeAttentionOutputs(to, outputs);
  writeAttentionPart(to, part);
}

/** multihead::bindings::BackwardCall */
export function attentionBackward(
  to: Arguments,
  q: Operand | undefined,
  k: Operand | undefined,
  v: Operand | undefined,
  options: Readonly<AttentionOptions>,
  results: Readonly<AttentionResults>,
  dOut: Operand | undefined,
  gradients: Readonly<AttentionGradients>,
  part: Readonly<BackwardPart>,
): void {
  to.begin();
  to.tensor(q);
  to.tensor(k);
  to.tensor(v);
  writeAttentionOptions(to, options);
  writeAttentionResults(to, results);
  to.tensor(dOut);
  writeAttentionGradients(to, gradients);
  writeBackwardPart(to, part);
}

/** multihead::bindings::CaptureCall */
export function pushCapture(
  to: Arguments,
  capture: Readonly<ScoreCapture>,
): void {
  to.begin();
  writeScoreCapture(to, capture);
}

/** multihead::bindings::ScoresCall */
export function attentionScores(
  to: Arguments,
  q: Operand | undefined,
  k: Operand | undefined,
  options: Readonly<AttentionOptions>,
): void {
  to.begin();
  to.tensor(q);
  to.tensor(k);
  writeAttentionOptions(to, options);
}

/** multihead::bindings::VarlenCall */
export function attentionVarlen(
  to: Arguments,
  q: Operand | undefined,
  k: Operand | undefined,
  v: Operand | undefined,
  cuQ: Span<'i32'>,
  cuK: Span<'i32'>,
  options: Readonly<AttentionOptions>,
  outputs: Readonly<AttentionOutputs>,
): void {
  to.begin();
  to.tensor(q);
  to.tensor(k);
  to.tensor(v);
  to.span(cuQ);
  to.span(cuK);
  writeAttentionOptions(to, options);
  writeAttentionOutputs(to, outputs);
}

/** multihead::bindings::VarlenBackwardCall */
export function attentionVarlenBackward(
  to: Arguments,
  q: Operand | undefined,
  k: Operand | undefined,
  v: Operand | undefined,
  cuQ: Span<'i32'>,
  cuK: Span<'i32'>,
  options: Readonly<AttentionOptions>,
  results: Readonly<AttentionResults>,
  dOut: Operand | undefined,
  gradients: Readonly<AttentionGradients>,
): void {
  to.begin();
  to.tensor(q);
  to.tensor(k);
  to.tensor(v);
  to.span(cuQ);
  to.span(cuK);
  writeAttentionOptions(to, options);
  writeAttentionResults(to, results);
  to.tensor(dOut);
  writeAttentionGradients(to, gradients);
}

/** multihead::bindings::MergeCall */
export function mergeAttention(
  to: Arguments,
  outA: Operand<'f32'> | undefined,
  lseA: Operand<'f32'> | undefined,
  outB: Operand<'f32'> | undefined,
  lseB: Operand<'f32'> | undefined,
): void {
  to.begin();
  to.tensor(outA);
  to.tensor(lseA);
  to.tensor(outB);
  to.tensor(lseB);
}

/** multihead::bindings::RotateCall */
export function rotate(
  to: Arguments,
  x: Operand<'f32'> | undefined,
  positions: Span<'i32'>,
  rope: Readonly<Rope>,
  y: Operand<'f32'> | undefined,
): void {
  to.begin();
  to.tensor(x);
  to.span(positions);
  writeRope(to, rope);
  to.tensor(y);
}

/** multihead::bindings::LatentCall */
export function latentAttention(
  to: Arguments,
  form: LatentForm,
  inputs: Readonly<LatentAttentionInputs>,
  options: Readonly<AttentionOptions>,
  outputs: Readonly<AttentionOutputs>,
): void {
  to.begin();
  to.number(form);
  writeLatentAttentionInputs(to, inputs);
  writeAttentionOptions(to, options);
  writeAttentionOutputs(to, outputs);
}

/** multihead::bindings::LinearCall */
export function linear(
  to: Arguments,
  x: Operand<'f32'> | undefined,
  weight: Operand<'f32'> | undefined,
  bias: Operand<'f32'> | undefined,
  y: Operand<'f32'> | undefined,
): void {
  to.begin();
  to.tensor(x);
  to.tensor(weight);
  to.tensor(bias);
  to.tensor(y);
}

/** multihead::bindings::HeadStatisticsCall */
export function headStatistics(
  to: Arguments,
  weights: Operand<'f32'> | undefined,
  tokens: Span<'i32'>,
  outputs: Readonly<HeadStatistics>,
): void {
  to.begin();
  to.tensor(weights);
  to.span(tokens);
  writeHeadStatistics(to, outputs);
}

/** multihead::bindings::CacheConfigCall */
export function cacheConfig(
  to: Arguments,
  config: Readonly<KVCacheConfig>,
): void {
  to.begin();
  writeKVCacheConfig(to, config);
}

/** multihead::bindings::AppendCall */
export function cacheAppend(
  to: Arguments,
  k: Operand | undefined,
  v: Operand | undefined,
  counts: Span<'i32'>,
): void {
  to.begin();
  to.tensor(k);
  to.tensor(v);
  to.span(counts);
}

/** multihead::bindings::AttendCall */
export function cacheAttend(
  to: Arguments,
  q: Operand | undefined,
  options: Readonly<AttentionOptions>,
  outputs: Readonly<AttentionOutputs>,
): void {
  to.begin();
  to.tensor(q);
  writeAttentionOptions(to, options);
  writeAttentionOutputs(to, outputs);
}

/** multihead::bindings::ParameterCall */
export function pushParameter(
  to: Arguments,
  tensor: Operand | undefined,
  name: Span<'text'>,
): void {
  to.begin();
  to.tensor(tensor);
  to.span(name);
}

/** multihead::bindings::ModuleConfigCall */
export function moduleConfig(
  to: Arguments,
  config: Readonly<MultiHeadAttentionConfig>,
): void {
  to.begin();
  writeMultiHeadAttentionConfig(to, config);
}

/** multihead::bindings::ForwardCall */
export function moduleForward(
  to: Arguments,
  inputs: Readonly<MultiHeadAttentionInputs>,
  options: Readonly<MultiHeadAttentionOptions>,
  outputs: Readonly<MultiHeadAttentionOutputs>,
  steps: Uint32,
): void {
  to.begin();
  writeMultiHeadAttentionInputs(to, inputs);
  writeMultiHeadAttentionOptions(to, options);
  writeMultiHeadAttentionOutputs(to, outputs);
  to.number(steps);
}

/** multihead::bindings::ModuleBackwardCall */
export function moduleBackward(
  to: Arguments,
  inputs: Readonly<MultiHeadAttentionInputs>,
  options: Readonly<MultiHeadAttentionOptions>,
  dOut: Operand<'f32'> | undefined,
  gradients: Readonly<MultiHeadAttentionGradients>,
): void {
  to.begin();
  writeMultiHeadAttentionInputs(to, inputs);
  writeMultiHeadAttentionOptions(to, options);
  to.tensor(dOut);
  writeMultiHeadAttentionGradients(to, gradients);
}

/** multihead::bindings::StepCall */
export function moduleStep(
  to: Arguments,
  x: Operand<'f32'> | undefined,
  options: Readonly<MultiHeadAttentionOptions>,
  outputs: Readonly<MultiHeadAttentionOutputs>,
  steps: Uint32,
): void {
  to.begin();
  to.tensor(x);
  writeMultiHeadAttentionOptions(to, options);
  writeMultiHeadAttentionOutputs(to, outputs);
  to.number(steps);
}

/** multihead::bindings::BlockConfigCall */
export function blockConfig(
  to: Arguments,
  config: Readonly<TransformerBlockConfig>,
): void {
  to.begin();
  writeTransformerBlockConfig(to, config);
}

/** multihead::bindings::BlockCall */
export function block(
  to: Arguments,
  x: Operand<'f32'> | undefined,
  options: Readonly<MultiHeadAttentionOptions>,
  outputs: Readonly<TransformerBlockOutputs>,
  steps: Uint32,
): void {
  to.begin();
  to.tensor(x);
  writeMultiHeadAttentionOptions(to, options);
  writeTransformerBlockOutputs(to, outputs);
  to.number(steps);
}

/** multihead::bindings::BlockBackwardCall */
export function blockBackward(
  to: Arguments,
  x: Operand<'f32'> | undefined,
  options: Readonly<MultiHeadAttentionOptions>,
  dOut: Operand<'f32'> | undefined,
  dX: Operand<'f32'> | undefined,
): void {
  to.begin();
  to.tensor(x);
  writeMultiHeadAttentionOptions(to, options);
  to.tensor(dOut);
  to.tensor(dX);
}

/** multihead::bindings::TransformerConfigCall */
export function transformerConfig(
  to: Arguments,
  config: Readonly<TransformerConfig>,
): void {
  to.begin();
  writeTransformerConfig(to, config);
}

/** multihead::bindings::TransformerCall */
export function transformer(
  to: Arguments,
  tokens: Span<'i32'>,
  batch: Int64,
  options: Readonly<MultiHeadAttentionOptions>,
  outputs: Readonly<TransformerOutputs>,
  steps: Uint32,
): void {
  to.begin();
  to.span(tokens);
  to.number(batch);
  writeMultiHeadAttentionOptions(to, options);
  writeTransformerOutputs(to, outputs);
  to.number(steps);
}

/** multihead::bindings::InitialiseCall */
export function initialize(
  to: Arguments,
  initialization: Readonly<Initialization>,
  names: ParameterNames,
): void {
  to.begin();
  writeInitialization(to, initialization);
  to.number(names);
}

/** multihead::bindings::TrainerOptionsCall */
export function trainerOptions(
  to: Arguments,
  options: Readonly<TrainerOptions>,
): void {
  to.begin();
  writeTrainerOptions(to, options);
}

/** multihead::bindings::TrainingCall */
export function training(
  to: Arguments,
  tokens: Span<'i32'>,
  batch: Int64,
  targets: Span<'i32'>,
  options: Readonly<MultiHeadAttentionOptions>,
): void {
  to.begin();
  to.span(tokens);
  to.number(batch);
  to.span(targets);
  writeMultiHeadAttentionOptions(to, options);
}

/** multihead::bindings::ExperimentCall */
export function experiment(
  to: Arguments,
  options: Readonly<ExperimentOptions>,
): void {
  to.begin();
  writeExperimentOptions(to, options);
}

/** multihead::bindings::EvaluationCall */
export function evaluation(
  to: Arguments,
  options: Readonly<EvaluationOptions>,
): void {
  to.begin();
  writeEvaluationOptions(to, options);
}

/** multihead::Status::Record */
export interface CoreError {
  readonly text: string;
  readonly message: number;
  readonly argument: number;
  readonly axes: number;
  readonly real: number;
  readonly number0: number;
  readonly number1: number;
  readonly number2: number;
  readonly number3: number;
  readonly shape: number[];
  readonly given: number[];
}

export function readCoreError(from: Results): CoreError {
  return {
    text: from.text(),
    message: from.number(),
    argument: from.number(),
    axes: from.number(),
    real: from.number(),
    number0: from.number(),
    number1: from.number(),
    number2: from.number(),
    number3: from.number(),
    shape: from.wholes(),
    given: from.wholes(),
  };
}

/** multihead::AttentionParts */
export interface AttentionParts {
  readonly heads: number;
  readonly blocks: number;
  readonly blockRows: number;
  readonly operations: number;
}

export function readAttentionParts(from: Results): AttentionParts {
  return {
    heads: from.number(),
    blocks: from.number(),
    blockRows: from.number(),
    operations: from.number(),
  };
}

/** multihead::ListedTensor */
export interface ListedTensor {
  readonly name: string;
  readonly address: number;
  readonly shape: number[];
  readonly byColumns: boolean;
}

export function readListedTensor(from: Results): ListedTensor {
  return {
    name: from.text(),
    address: from.number(),
    shape: from.wholes(),
    byColumns: from.flag(),
  };
}

/** multihead::TrainingStep */
export interface TrainingStep {
  readonly step: number;
  readonly loss: number;
  readonly gradientNorm: number;
  readonly learningRate: number;
  readonly counted: number;
  readonly correct: number;
}

export function readTrainingStep(from: Results): TrainingStep {
  return {
    step: from.number(),
    loss: from.number(),
    gradientNorm: from.number(),
    learningRate: from.number(),
    counted: from.number(),
    correct: from.number(),
  };
}

/** multihead::ExperimentFacts */
export interface ExperimentFacts {
  readonly model: number;
  readonly trainer: number;
  readonly numHeads: number;
  readonly numLayers: number;
  readonly steps: number;
  readonly batch: number;
  readonly embedDim: number;
  readonly vocabSize: number;
  readonly maxPositions: number;
  readonly parameters: number;
  readonly jobs: string[];
  readonly patterns: string[];
}

export function readExperimentFacts(from: Results): ExperimentFacts {
  return {
    model: from.number(),
    trainer: from.number(),
    numHeads: from.number(),
    numLayers: from.number(),
    steps: from.number(),
    batch: from.number(),
    embedDim: from.number(),
    vocabSize: from.number(),
    maxPositions: from.number(),
    parameters: from.number(),
    jobs: from.texts(),
    patterns: from.texts(),
  };
}

/** multihead::Evaluation */
export interface Evaluation {
  readonly loss: number;
  readonly accuracy: number;
  readonly jobAccuracy: Float64Array;
  readonly attention: Float64Array;
  readonly mutedAccuracy: Float64Array;
  readonly headOfPattern: number[];
}

export function readEvaluation(from: Results): Evaluation {
  return {
    loss: from.number(),
    accuracy: from.number(),
    jobAccuracy: from.doubles(),
    attention: from.doubles(),
    mutedAccuracy: from.doubles(),
    headOfPattern: from.wholes(),
  };
}

/** multihead::HeldOutSequences */
export interface HeldOutSequences {
  readonly tokens: Int32Array;
  readonly targets: Int32Array;
}

export function readHeldOutSequences(from: Results): HeldOutSequences {
  return {
    tokens: from.integers(),
    targets: from.integers(),
  };
}

/** multihead::SimdTarget */
export interface SimdTarget {
  readonly name: string;
}

export function readSimdTarget(from: Results): SimdTarget {
  return {
    name: from.text(),
  };
}

export interface WireFunctions {
  argumentBlock(): Uint32;
  allocate(bytes: Uint32): Uint32;
  release(address: Uint32): void;
  lastError(): void;
  simdTarget(): void;
  attention(): Int32;
  divideAttention(packed: boolean): Int32;
  attentionPart(): Int32;
  setTeam(rank: Int32, members: Int32): void;
  attentionBackward(): Int32;
  prepareBackward(): Int32;
  preparedBackwardRelease(handle: Int32): void;
  prepare(): Int32;
  preparedRelease(handle: Int32): void;
  pushCapture(): Int32;
  attentionScores(): Int32;
  attentionVarlen(): Int32;
  attentionVarlenBackward(): Int32;
  mergeAttention(): Int32;
  alibiSlopes(address: Uint32, count: Int32): void;
  rotate(): Int32;
  latentAttention(): Int32;
  linear(): Int32;
  headStatistics(): Int32;
  cacheCreate(): Int32;
  cacheRelease(handle: Int32): void;
  cacheAppend(handle: Int32): Int32;
  cacheAttend(handle: Int32): Int32;
  cacheTruncate(handle: Int32, batch: Int32, length: Int32): Int32;
  cacheClear(handle: Int32): void;
  cacheLength(handle: Int32, batch: Int32): Int32;
  cacheFirstKept(handle: Int32, batch: Int32): Int32;
  cacheBytes(handle: Int32): number;
  listedCount(): Int32;
  listed(index: Int32): void;
  releaseListed(): void;
  moduleCreate(): Int32;
  moduleRelease(handle: Int32): void;
  pushParameter(): Int32;
  moduleLoad(handle: Int32, whole: Int32): Int32;
  moduleParameters(handle: Int32): number;
  moduleState(handle: Int32, sharesAlone: Int32): Int32;
  moduleForward(handle: Int32): Int32;
  moduleStep(handle: Int32, cache: Int32): Int32;
  moduleBackward(handle: Int32): Int32;
  moduleCacheCreate(handle: Int32): Int32;
  moduleCacheRelease(handle: Int32): void;
  moduleCacheTruncate(handle: Int32, length: Int32): Int32;
  moduleCacheLength(handle: Int32): Int32;
  moduleCacheBytes(handle: Int32): number;
  blockCreate(): Int32;
  blockRelease(handle: Int32): void;
  blockLoad(handle: Int32, names: Int32, whole: Int32): Int32;
  blockParameters(handle: Int32): number;
  blockState(handle: Int32, sharesAlone: Int32): Int32;
  blockForward(handle: Int32): Int32;
  blockCacheCreate(handle: Int32): Int32;
  blockStep(handle: Int32, cache: Int32): Int32;
  blockBackward(handle: Int32): Int32;
  transformerCreate(): Int32;
  transformerRelease(handle: Int32): void;
  transformerLoad(handle: Int32, names: Int32, whole: Int32): Int32;
  transformerInitialize(handle: Int32): Int32;
  transformerParameters(handle: Int32): number;
  transformerState(handle: Int32, sharesAlone: Int32): Int32;
  transformerForward(handle: Int32): Int32;
  transformerCacheCreate(handle: Int32): Int32;
  transformerStep(handle: Int32, cache: Int32): Int32;
  trainerCreate(model: Int32): Int32;
  trainerRelease(handle: Int32): void;
  trainerUpdate(handle: Int32): Int32;
  trainerSetLearningRate(handle: Int32, rate: number): Int32;
  trainerSteps(handle: Int32): number;
  trainerGradients(handle: Int32): Int32;
  trainerState(handle: Int32): Int32;
  trainerLoad(handle: Int32): Int32;
  experimentCreate(): Int32;
  experimentRelease(handle: Int32): void;
  experimentFacts(handle: Int32): void;
  experimentEvaluate(handle: Int32): Int32;
  experimentHeldOut(handle: Int32, first: Int32, count: Int32): Int32;
}
