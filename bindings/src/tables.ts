// Made by tables.mjs out of src/engine/error/messages.inc and wire.inc, in their order: the core gives places in these lists.

/** The texts of errors; those of the other part are empty. */
export interface ErrorTables {
  /** Of arguments, options and functions. */
  readonly names: readonly string[];
  readonly axes: readonly string[];
  /** Templates, in turns of what was expected and of what came. */
  readonly messages: readonly string[];
}

/** What multihead/core can report. */
export const coreTables: ErrorTables = {
  names: /* @__PURE__ */ "||activation||||alibi|||||batch||||bias||||||capacity|capture.firstRow|capture.heads|capture.out|capture.stage|captures|causal|||counts||cuK|cuQ|dBias|||dK||dKGain|||dOut|dQ|dQGain|||dSinks|dV|dropoutMask|dropout.probability||||||eps||||||gate||headDim|||||k|||||||||||||||kvLengths|||layout||length|||lse|a.lse|b.lse|mask|||memory||||||||||numKvHeads||||out|a.out|b.out||||||pageSize|pages|positions|precision|prepared||q|||||||||||qkNorm|qkNorm.eps|qkNorm.kGain|qkNorm.qGain||||rope|rope.base||rope.kPositions|rope.qPositions|rope.rotaryDim|rope.style||scale||sinks||softcap||||team|||||||||type|||v||||valueDim|||||||weight|weights||window.align|window.left|window.right|x|y".split('|'),
  axes: /* @__PURE__ */ "|(B, H_q, N_q, d_k)|(B, H_kv, N_k, d_k)|(B, H_kv, N_k, d_v)|(B, H_q, N_q, d_v)|(B, H_q, N_q)|(B, H_q, N_q, N_k)|(B, heads, rows, N_k)|(B, H, N, d)|of bias||||(T_q, H_q, d_k)|(T_k, H_kv, d_k)|(T_k, H_kv, d_v)|(T_q, H_q, d_v)|(H_q, T_q)|(B, H_kv, n, d_k)|(B, H_kv, n, d_v)|||||||(rows, in)|(rows, out)|(out, in)|(out)|(rows, width)|(width)||||||||||||||||||||||||||||||||||||||||".split('|'),
  messages: /* @__PURE__ */ "|{text}|{0} bytes|none left to allocate|as much as the call needs|none left to allocate|one of its {0} values|number {1}|{0} to {1}|{2}|a finite number|{real}|finite numbers|{real}|a finite number, 0 or more|{real}|a finite number above 0|{real}|||0 <= p < 1|{real}|||||{0} values, one per batch entry|{1} values|{0} values, one per query head|{1} values|||{0} values, one per element of d_k|{1} values|rank {0}, {axes}|rank {1}, {given}|{axes} = {shape}|{given}|{axes} = {shape}|nothing|f32, f16 or bf16|element type number {0}|||the element type of k, {dtype0}|{dtype1}|a place of its own for each element|stride {0} along axis {1}, where the axes of smaller strides span {2}|memory of its own|memory of {name0}|a contiguous last axis (stride 1)|stride {0}|||as many strides as extents, {0}|{1} strides|extents from 0 to 2147483647|{given}|extents whose product, without zeros, is below 2^61|{given}|data for {given}|a null pointer|(N_q, N_k) or (B, H_q, N_q, N_k) that broadcasts to {shape}|{given}|(N_q, N_k) or (B, H_q, N_q, N_k) that broadcasts to {shape}|{given}, whose first axis could be B or H_q: add an axis of 1 to say which|{axes} with B = {0}, d_k = {1} as in q {shape}|{given}|{axes} with B = {0}, H_kv = {1}, N_k = {2} as in k {shape}|{given}|H_kv that divides H_q = {0}|H_kv = {1}|{axes} with in = {0} as in x {shape}|{given}|a number, since d_k = 0 has no 1/sqrt(d_k)|none|0 or more, or -1 for open|{0}|none, or that of causal, whose positions it takes|another one|left or right beside it|neither|kvLengths beside the bottom-right of lengths|none|0 to N_k = {0}|{1}|enabled, since it has gains|not enabled|a style|none|a style, since rotaryDim is given|none|a style, since positions are given|none|an even number up to d_k = {0}|{1}|{0} values, or {1} for each batch entry its own|{2} values|one for each row|none|that of attention() with the same inputs and options|{real} in the last row of the first head|none, since there is no bias|one|none, since there are no sinks|one|none, since qkNorm is not enabled|one|dQ with dQGain, dK with dKGain|none|each head once|{0} twice|rows within N_q = {0}|{1} rows from {2} on|numbers that start at 0, never fall and end at the number of rows, {0}|none|numbers that start at 0, never fall and end at the number of rows, {0}|from {1} to {2}|numbers that start at 0, never fall and end at the number of rows, {0}|from {1} to {2}, falling between|as many rows as k, {0}|{given}|as many sequences as cuQ, {0}|{1}|nothing with packed sequences|one|an address, since there are elements|a null pointer|an operation that create() has made|an empty one|none, since none was prepared|one|at most headDim = {0}, since keys hold the values|{1}|none: keys hold the values|one|0 to n = {0}|{1}|room for {0} tokens in batch entry {1} of capacity {2}|{3} kept already|{0} free pages in the pool|{1}|none: the cache knows its lengths|some|none: apply it to keys before append() and to queries before attend()|one|none or bottomRight|another alignment|||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||||members that all finish the call|one that has left it||||".split('|'),
};

/** multihead::CallStatus */
export const callStatus = {
  ok: 0,
  shape: 1,
  option: 2,
  memory: 3,
  format: 4,
  nothingLeft: 5,
  otherArguments: 6,
} as const;
export type CallStatus = (typeof callStatus)[keyof typeof callStatus];

/** multihead::DType */
export const dtypes = {
  f32: 0,
  f16: 1,
  bf16: 2,
  int8: 3,
} as const;
export type DType = (typeof dtypes)[keyof typeof dtypes];

/** multihead::Alignment */
export const alignments = {
  none: 0,
  topLeft: 1,
  bottomRight: 2,
  bottomRightOfLength: 3,
  offset: 4,
} as const;
export type Alignment = (typeof alignments)[keyof typeof alignments];

/** multihead::Rope::Style */
export const ropeStyles = {
  none: 0,
  interleaved: 1,
  half: 2,
} as const;
export type RopeStyle = (typeof ropeStyles)[keyof typeof ropeStyles];

/** multihead::Precision */
export const precisions = {
  f32: 0,
  bf16: 1,
} as const;
export type Precision = (typeof precisions)[keyof typeof precisions];

/** multihead::ScoreStage */
export const scoreStages = {
  raw: 0,
  capped: 1,
  masked: 2,
  weights: 3,
} as const;
export type ScoreStage = (typeof scoreStages)[keyof typeof scoreStages];

/** multihead::LatentForm */
export const latentForms = {
  expanded: 0,
  absorbed: 1,
} as const;
export type LatentForm = (typeof latentForms)[keyof typeof latentForms];

/** multihead::KVCacheConfig::Layout */
export const cacheLayouts = {
  contiguous: 0,
  ring: 1,
  paged: 2,
} as const;
export type KVCacheConfigLayout = (typeof cacheLayouts)[keyof typeof cacheLayouts];

/** multihead::Activation */
export const activations = {
  relu: 0,
  gelu: 1,
  geluTanh: 2,
  silu: 3,
} as const;
export type Activation = (typeof activations)[keyof typeof activations];

/** multihead::Norm */
export const norms = {
  none: 0,
  layerNorm: 1,
  rmsNorm: 2,
} as const;
export type Norm = (typeof norms)[keyof typeof norms];

/** multihead::ParameterNames */
export const parameterNames = {
  torch: 0,
  gpt2: 1,
} as const;
export type ParameterNames = (typeof parameterNames)[keyof typeof parameterNames];

/** multihead::Optimizer */
export const optimizers = {
  adamW: 0,
  sgd: 1,
} as const;
export type Optimizer = (typeof optimizers)[keyof typeof optimizers];

/** multihead::LearningRateDecay */
export const learningRateDecays = {
  constant: 0,
  cosine: 1,
} as const;
export type LearningRateDecay = (typeof learningRateDecays)[keyof typeof learningRateDecays];

/** multihead::ExperimentKind */
export const experimentKinds = {
  fourJobs: 0,
  induction: 1,
} as const;
export type ExperimentKind = (typeof experimentKinds)[keyof typeof experimentKinds];

/** multihead::PositionKind */
export const positionKinds = {
  rope: 0,
  learned: 1,
  alibi: 2,
  none: 3,
} as const;
export type PositionKind = (typeof positionKinds)[keyof typeof positionKinds];

export const blockLength = 256;

/** load() refuses a module of another version. */
export const wireVersion = '2d005df9';
