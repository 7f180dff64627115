// The interface of a model's engine, which is the core on the calling thread, or workers. An engine takes numbers that are
// checked already: model.ts and generate.ts check options and convert texts.

import type { PartName } from '../../generated/parts.js';
import type { DType, EarlyStopping, EditAction, Pooling, Site } from '../../generated/tables.js';
import type { SamplingOptions } from '../../generated/wire.js';
import type { TopToken, ModelInfo, ModelWeights } from '../../types/models.js';
import type { Count, Extents, Int64 } from '../../types/wire.js';

export type Awaitable<T> = T | Promise<T>;

/** A value inside the model, with its number in the core. */
export interface Place {
  readonly site: Site;
  readonly layer: number;
  readonly heads?: readonly number[] | undefined;
}

/** A change of a value. */
export interface PlacedEdit extends Place {
  /** Of the batch; undefined for all. */
  readonly sequences?: readonly number[] | undefined;
  readonly tokens?: readonly number[] | undefined;
  readonly action: EditAction;
  readonly factor: number;
  readonly value?: { readonly data: Float32Array; readonly shape: readonly number[] } | undefined;
}

/** Sequences of one batch, padded at the end to the longest, or images. */
export interface Batch {
  readonly ids: Int32Array;
  readonly batch: Count;
  readonly tokens: Count;
  /** 1 for tokens, 0 for padding; undefined if there is no padding. */
  readonly mask?: Uint8Array | undefined;
  readonly tokenTypes?: Int32Array | undefined;
  readonly pixels?: Float32Array | undefined;
  /** Of one sequence, on the calling thread. */
  readonly edits?: readonly PlacedEdit[] | undefined;
  /** Token ids of the encoder, for a decoder with one. */
  readonly source?: Int32Array | undefined;
  readonly sourceEdits?: readonly PlacedEdit[] | undefined;
}

/** A pass, and the shape of each output that it computes. */
export interface PassCall {
  readonly batch: Batch;
  readonly headScales: Float32Array | undefined;
  readonly what:
    | { readonly kind: 'embed'; readonly pooling: Pooling; readonly normalize: boolean }
    /** A layer or head of −1 stands for all. */
    | { readonly kind: 'attentions'; readonly layer: Int64; readonly head: Int64; readonly cross: boolean }
    /**
     * The outputs are hidden states, last hidden state, logits, pooler output and the encoder's last hidden state, undefined if not
     * wanted; then the captures.
     */
    | { readonly kind: 'forward'; readonly captures?: readonly Place[] };
  readonly outputs: readonly (Extents | undefined)[];
  /** True for a pass of the encoder alone. */
  readonly inEncoder?: boolean;
}

/** The outputs of a pass in the order of its call. */
export type PassResult = (Float32Array<ArrayBuffer> | undefined)[];

export interface GenerationSettings {
  readonly prompt: Int32Array;
  /** Most tokens of the prompt and new ones, without the last one, whose keys are never needed. */
  readonly capacity: Count;
  /** Type of the cached keys and values. */
  readonly cache: DType;
  readonly sampling: Readonly<SamplingOptions>;
  readonly headScales: Float32Array | undefined;
  readonly edits: readonly PlacedEdit[];
  /** Number of likely tokens that each step gives. */
  readonly topTokens: number;
  /** Rules as the core takes them, and the most tokens of the prompt and new ones; 0 for no end. */
  readonly rules: readonly number[];
  readonly end: number;
  /** A search with beams in place of choosing token by token. */
  readonly beams?: BeamSettings | undefined;
  /** Token ids of the encoder; the prompt is then the decoder's. */
  readonly source?: Int32Array | undefined;
  readonly sourceEdits?: readonly PlacedEdit[] | undefined;
  /** A generation of the same model that was filled, and how many of its first tokens the prompt begins with. */
  readonly prefix?: { readonly of: SteppedGeneration; readonly common: number } | undefined;
  /** Tries at most `most` tokens that follow the last ones, at most `longest` of them, where they occurred before. */
  readonly lookup?: { readonly most: number; readonly longest: number } | undefined;
}

export interface BeamSettings {
  readonly count: number;
  readonly lengthPenalty: number;
  readonly earlyStopping: EarlyStopping;
  /** Token ids that end a sequence, and the most new tokens. */
  readonly stops: Int32Array;
  readonly most: number;
}

/** A token that was chosen. */
export interface GenerationStep {
  readonly token: number;
  readonly topTokens: readonly TopToken[];
  /** True if it was looked up, and needed no pass of its own. */
  readonly accepted: boolean;
}

/** Continues a prompt. */
export interface Generation {
  /** Computes and appends the next token. */
  next(): Awaitable<GenerationStep>;
  dispose(): void;
}

/** One without beams. */
export interface SteppedGeneration extends Generation {
  /** Computes the logits of the next token, for choose(). */
  logits(): Awaitable<Float32Array>;
  /** Chooses and appends the next token. */
  choose(logits: Float32Array): Awaitable<GenerationStep>;
  /** Computes the keys and values of the prompt, so that others can begin with them. */
  fill(): Awaitable<void>;
}

export interface ModelEngine {
  /** The core's description of the model. */
  readonly info: ModelInfo;
  /** Computes passes of the encoder alone. */
  readonly encoder: ModelEngine | undefined;
  /** Number of workers; 0 for the calling thread. */
  readonly workers: number;
  /** What computes the layers, and why it is not a GPU if one was asked for: see {@link Model.device} of types/models.ts. */
  readonly device: string;
  readonly disposed: boolean;
  /** Throws `E_DISPOSED`, `E_FATAL`, `E_WORKER`. */
  assertLive(): void;
  /** Loads a part of the core, once. Throws `E_LOAD`. */
  load(part: PartName): Promise<void>;
  run(call: PassCall): Awaitable<PassResult>;
  /** PassAnalyses (core_analyses.ts) of a GPU or workers; undefined where the core of this thread is to compute them. */
  analyses?(): Promise<object | undefined>;
  /** Of device 'auto', the CPU's side. */
  readonly cpu?: ModelEngine;
  /** True if the core can go on after an error of the GPU. */
  recovers?(error: unknown): boolean;
  /** These two for workers; generations.ts has those of the calling thread. */
  generation?(settings: GenerationSettings): Generation;
  together?(generations: readonly Generation[]): Awaitable<void>;
  dispose(): void;
}

/** Texts, each followed by a zero, and numbers. */
export interface FlatList {
  readonly texts: string;
  readonly numbers: Float64Array<ArrayBuffer>;
}

/** The arguments of a new loader. */
export interface LoaderInput {
  readonly settings: FlatList;
  readonly tensors: FlatList;
  readonly weights: ModelWeights | undefined;
  readonly embeddingWeights: ModelWeights | undefined;
  /** True for the tower of images of a model with two. */
  readonly images: boolean;
}

/** Takes the weights of a model. */
export interface WeightLoader {
  /** Places of the needed tensors in the list of all. */
  readonly needed: Int32Array;
  /** Takes the next bytes of a tensor, at most `pieceBytes`, in an array with a buffer of its own that may be transferred. */
  give(tensor: number, bytes: Uint8Array<ArrayBuffer>): Awaitable<void>;
  finish(): Awaitable<ModelEngine>;
  dispose(): void;
}

/** Makes a loader. Throws `E_OPTION`, `E_FORMAT`, and `E_MEMORY` if the weights do not fit. */
export type OpenLoader = (input: LoaderInput) => Awaitable<WeightLoader>;
