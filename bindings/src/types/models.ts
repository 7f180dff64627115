// The types of multihead/models.

import type { LoadOptions, WasmSource } from './load.js';
import type { PlatformAbortSignal, PlatformBlob, PlatformResponse, PlatformURL } from './platform.js';
import type { PoolWorker } from './pool.js';
import type { ModelAnalyses } from './analysis.js';
import type { EncodeOptions, InputOptions, ModelArray, ModelImage, ModelInput, PassOptions } from './model_input.js';
import type { Capture, SessionEdit } from './sites.js';
import type { DisposableObject, Filled } from './tensor.js';
import type { BatchOptions, TrainerBase, TrainerOptions } from './trainer.js';

export type * from './analysis.js';
export type * from './model_input.js';
export type * from './sites.js';
export type { StateDict } from './module.js';
export type { DisposableObject, PlainTensor } from './tensor.js';
export type { BatchOptions, LearningRateDecay, Optimizer, TrainerBase, TrainerOptions, TrainingState, TrainingStep } from './trainer.js';

/** A file with its name, such as a `File` of a form, or of a folder that was dropped. */
export type ModelFile = PlatformBlob & {
  /** Name of the file, with or without folders in front. */
  readonly name: string;
  /** Path below the folder that was chosen, as browsers give it; used instead of `name` if it is not empty. */
  readonly webkitRelativePath?: string;
};

/**
 * A folder as Hugging Face stores a model: `config.json` and `model.safetensors`, or the files that
 * `model.safetensors.index.json` lists, and `tokenizer.json` where text is used; the files of sentence-transformers for
 * embed(). One of
 * - its name on the hub, `ORG/NAME`. Its files are fetched once for each commit, and kept: in the Cache API of a page, in Node below
 *   `multihead` in `XDG_CACHE_HOME` or `~/.cache`, else in memory. One small request asks for the commit of the revision; without a network the last
 *   one is opened. A file that broke off goes on where it ended at the next call.
 * - a path in Node, which counts before a name if it exists. In a page, a relative address begins with a dot or a slash.
 * - the URL below which all files can be fetched, such as `https://example.org/model`; a query such as `?sig=…` is put behind the
 *   name of each file. They are not kept.
 * - its files, as Blobs with names or responses.
 *
 * Integers with scales of groups, of MLX (affine, 4 and 8 bits), GPTQ (4 and 8) and AWQ (gemm, 4), are read as the numbers they stand
 * for; without `weights` they become int8.
 *
 * Or a GGUF file, which is a whole model with its tokenizer and chat template: as a path, an address that ends with `.gguf`,
 * `ORG/NAME/FILE.gguf`, a Blob or a Response. Of llama.cpp's architectures: llama, mistral3, qwen2, qwen2vl, qwen3, qwen3vl, smollm3, gemma,
 * gemma2, gemma3, phi2, phi3, granite, olmo, olmo2 (also OLMo 3), command-r, cohere2, glm4, chatglm, ernie4_5, arcee, exaone4, seed_oss,
 * hunyuan-dense, stablelm, starcoder, starcoder2, gpt2, gptneox, bloom, and the encoders bert (also RoBERTa and DistilBERT),
 * jina-bert-v2, nomic-bert, modern-bert, eurobert and gemma-embedding, with their pooling and Dense modules. Weights of F32, F16, BF16,
 * Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K and Q6_K. Without `weights`, they are used with their numbers, but Q5_0, Q5_1, Q5_K and Q6_K
 * become int8.
 *
 * Files that are not needed may be missing, and so are those for which a server sends an HTML page, refuses the request (4xx) or
 * cannot be reached.
 */
export type ModelSource = string | PlatformURL | PlatformBlob | PlatformResponse | Iterable<ModelFile | PlatformResponse>;

/** Types of weights. `int8` and `int4` are blocks of 32 numbers with a scale, in the form of llama.cpp's Q8_0 and Q4_0. */
export type ModelWeights = 'f32' | 'f16' | 'bf16' | 'int8' | 'int4';

/** What openModel() needs of a tokenizer; the Tokenizer of `@huggingface/tokenizers` has it. */
export interface TextTokenizer {
  /** Converts a text, or a pair of texts, to token ids. */
  encode(
    text: string,
    options?: {
      /** The second text of a pair. */
      text_pair?: string | null;
      /** True adds the tokens that the model expects around a text, such as `[CLS]`. */
      add_special_tokens?: boolean;
      /** True adds `token_type_ids` to the result. */
      return_token_type_ids?: boolean;
    },
  ): {
    /** Token ids. */
    ids: number[];
    /** The tokens as the vocabulary spells them. */
    tokens: string[];
    /** 0 for tokens of the first text, 1 for those of the second. */
    token_type_ids?: number[];
  };
  /** Converts token ids to text. */
  decode(
    ids: number[],
    options?: {
      /** True leaves out tokens such as `[CLS]`. */
      skip_special_tokens?: boolean;
      /** False keeps the spaces of the tokens, such as one before a full stop. */
      clean_up_tokenization_spaces?: boolean;
    },
  ): string;
}

/** Progress of a file of the hub. */
export interface FetchProgress {
  /** Its name in the folder, such as `model.safetensors`. */
  readonly file: string;
  /** Bytes that are kept. */
  readonly loaded: number;
  /** Bytes of the file; undefined if the server does not tell. */
  readonly total: number | undefined;
}

/** A part of the `.wasm` of multihead/models. */
export type ModelPart = 'analyses' | 'inspection' | 'caches' | 'beams' | 'generation' | 'pooling' | 'formats' | 'quantized' | 'team' | 'gpu';

/** Options of openModel(). */
export interface OpenModelOptions extends Pick<LoadOptions, 'wasm' | 'simd' | 'integrity'> {
  /**
   * Sources of parts of the `.wasm`, which are loaded when a model or a call first needs them: the README lists them. Default: the
   * files next to the package's own modules. Give those of the build that is loaded, which the package exports as
   * `multihead/analyses-relaxed.wasm`, `multihead/analyses-simd128.wasm` and so on. `integrity`, if given, must have the hash of each
   * part that is loaded, too.
   */
  readonly parts?: { readonly [part in ModelPart]?: WasmSource | undefined } | undefined;
  /**
   * Type of the matrices and the embedding in memory. Default: as the files have them. Norms and biases are always
   * f32.
   */
  readonly weights?: ModelWeights | undefined;
  /**
   * Type of the embedding and of the matrix of logits in memory. Default: as `weights` says. `int4` in these two matrices loses
   * more than `int4` in all others.
   */
  readonly embeddingWeights?: ModelWeights | undefined;
  /**
   * Called while weights are read, with the bytes so far and the bytes of all weights. In a model of two towers, each tower counts its
   * own. Default none.
   */
  readonly onProgress?: ((loaded: number, total: number) => void) | undefined;
  /** Names of the hub: a branch, a tag or a commit; default `'main'`. */
  readonly revision?: string | undefined;
  /** Names of the hub: the address of another server; default in Node the environment's `HF_ENDPOINT`, else `https://huggingface.co`. */
  readonly host?: string | undefined;
  /** True fetches nothing: a name of the hub is opened from the files that are kept. Default false. */
  readonly local?: boolean | undefined;
  /** Names of the hub: called for each piece of a file that is fetched and kept. Default none. */
  readonly onFetch?: ((progress: FetchProgress) => void) | undefined;
  /** Aborting rejects with `E_ABORTED` and frees everything. Default none. */
  readonly signal?: PlatformAbortSignal | undefined;
  /**
   * Converts text. Default: the Tokenizer of the optional peer dependency `@huggingface/tokenizers`, made of the folder's
   * `tokenizer.json` and `tokenizer_config.json` when text is first used.
   */
  readonly tokenizer?: TextTokenizer | undefined;
  /**
   * Number of workers in which the model lives, from 1 to 64; `'all'` is one for each core of the machine, at most 64. They
   * divide every pass, with the bits of one thread, and the calling thread stays free: it only reads the files and converts
   * texts. Of the matrices and the embedding, each of n workers holds the rows for the outputs that it computes, and of the
   * cached keys and values the heads that it computes: about 1/n. Several workers need shared memory: Node has it, and a page that is
   * cross-origin isolated; elsewhere there is one worker. If no worker can be started, as in a service worker, the model
   * lives on the calling thread. {@link Model.workers} says how many there are. Default: none, and passes block the calling
   * thread. Firefox 153 never returns from 1 of 50 `new Worker()` in a worker: there, open such a model on the page's thread.
   */
  readonly workers?: number | 'all' | undefined;
  /**
   * `'gpu'` computes the layers on the browser's GPU by WebGPU: the matrices go there while they are read, and caches of
   * generations live there. Models with images or with encoder and decoder, DeBERTa, CLIP's texts and heads wider than 256 are an
   * `E_OPTION` that says why, as are generations with beams, prompt lookup, prefixes, gradients and training. `'auto'` waits five seconds
   * for a device, loads the weights on both sides, measures both at the first passes and tokens, and takes the faster one, which
   * {@link Model.device} says with the times; the other calls are the CPU's, and it goes on there, in the middle of a generation too, if the
   * GPU is lost, hangs for two minutes, refuses a kernel or has not enough memory. With `workers`, these are the CPU; `'gpu'` takes none.
   * Default `'cpu'`.
   */
  readonly device?: 'cpu' | 'gpu' | 'auto' | undefined;
  /**
   * As {@link PoolOptions.worker}, only with `workers`, and for `openModel`: its script is `multihead/models_worker.js`. If the function
   * throws, the model lives on the calling thread.
   */
  readonly worker?: (() => PoolWorker) | undefined;
}

/**
 * How one vector is made of a text: the mean over its tokens, its first or its last token, the largest number of all tokens in
 * each place, the sum divided by the square root of their number, the mean weighted by their positions from 1 on, or the pooler's output.
 */
export type Pooling = 'mean' | 'firstToken' | 'lastToken' | 'max' | 'meanSqrtLength' | 'weightedMean' | 'pooler';

/**
 * Which tokens a generation must choose, or may not. The names follow transformers: `forcedBos` is `forced_bos_token_id`,
 * `suppress` is `suppress_tokens`.
 */
export interface TokenRules {
  /** The decoder's second token; undefined for none. */
  readonly forcedBos: number | undefined;
  /** The last token if `maxNewTokens` ends the text; undefined for none. */
  readonly forcedEos: number | undefined;
  /** Tokens that are never chosen. */
  readonly suppress: readonly number[];
  /** Tokens that are not the first one, after a `forcedBos`. */
  readonly beginSuppress: readonly number[];
  /** Sequences whose last token is not chosen. */
  readonly badWords: readonly (readonly number[])[];
  /** No sequence of so many tokens occurs twice, those of the prompt included; 0: any may. */
  readonly noRepeatNgramSize: number;
  /** Nor one that the prompt, or what the encoder reads, has; 0: any may. */
  readonly encoderNoRepeatNgramSize: number;
  /** The fewest tokens before one that ends the text, those of the prompt or of the decoder's start included. */
  readonly minLength: number;
  /** The fewest new tokens before one that ends the text; counts in place of `minLength` unless it is 0. */
  readonly minNewTokens: number;
}

/** What a generation does unless its options say otherwise. */
export interface GenerationDefaults extends Filled<Pick<GenerateOptions, 'numBeams' | 'lengthPenalty' | 'earlyStopping' | 'repetitionPenalty'>> {
  /** Most new tokens, of an encoder–decoder model only; 0: none. */
  readonly maxNewTokens: number;
  /** Without `maxNewTokens`: most tokens, those of the decoder's start included; 0: none. */
  readonly maxLength: number;
}

/** The rules of {@link TokenRules} that a generation can change. Default: as {@link ModelInfo.rules}. */
type ChosenRules = {
  readonly [N in Exclude<keyof TokenRules, 'minLength' | 'forcedBos' | 'forcedEos'>]?: TokenRules[N] | undefined;
} & {
  /** The second token of a decoder with an encoder, such as a language; null for none. */
  readonly forcedBos?: number | null | undefined;
  /** The last token if `maxNewTokens` ends the text; null for none. */
  readonly forcedEos?: number | null | undefined;
};

/** The properties of a model. An encoder–decoder model gives the properties of its decoder. */
export interface ModelInfo {
  /** `model_type` of config.json. */
  readonly modelType: string;
  /**
   * What the logits are: of the next token, of each token itself, of classes for a sequence or for each token, or of each
   * token for being the start of the answer and its end.
   */
  readonly output: 'none' | 'languageModel' | 'maskedLanguageModel' | 'classification' | 'tokenClassification' | 'questionAnswering';
  /** True if a token sees only itself and the tokens before it. */
  readonly causal: boolean;
  /** True if the model has a pooler. */
  readonly hasPooler: boolean;
  /** True if the input is pixels. */
  readonly takesPixels: boolean;
  /** True for a model of texts and images: see {@link Model.vision}. */
  readonly hasImages: boolean;
  /** Number of layers. */
  readonly numLayers: number;
  /** Width of the hidden state. */
  readonly embedDim: number;
  /** Query heads of each layer. */
  readonly numHeads: number;
  /** Key and value heads of each layer. */
  readonly numKvHeads: number;
  /** Width of a head. */
  readonly headDim: number;
  /** Width of the MLP's hidden layer. */
  readonly mlpDim: number;
  /** Number of token ids. */
  readonly vocabSize: number;
  /** Number of classes; 2 for question answering, 0 without classes. */
  readonly numLabels: number;
  /** Longest sequence; 0 if only memory limits it. */
  readonly maxTokens: number;
  /** Number of token types; 0 if there are none. */
  readonly tokenTypes: number;
  /** Height and width of pixels; 0 for text. */
  readonly imageSize: number;
  /** Channels of pixels; 0 for text. */
  readonly channels: number;
  /** Height and width of a patch; 0 for text. */
  readonly patchSize: number;
  /** Number of parameters in use. */
  readonly parameters: number;
  /** Bytes of all weights in memory. */
  readonly weightBytes: number;
  /** How embed() makes one vector of a text, by `1_Pooling/config.json` of the folder; `'mean'` without one. */
  readonly pooling: Pooling;
  /** False if the tokens of a prompt are not pooled, which embed() does not do. */
  readonly poolsPrompt: boolean;
  /** Numbers of a vector of embed(): embedDim, or what the last Dense of the folder gives. */
  readonly vectorDim: number;
  /** Models of texts and images: similarities are logitScale · product of two vectors + logitBias. */
  readonly logitScale: number;
  /** See logitScale; 0 in CLIP. */
  readonly logitBias: number;
  /** Tokens that embed() reads of a text, by the files of sentence-transformers in the folder; 0 if they tell none. */
  readonly maxSeqLength: number;
  /** Tokens that end a text, of config.json and generation_config.json. */
  readonly endIds: readonly number[];
  /** The encoder of an encoder–decoder model; undefined for others. */
  readonly encoder: ModelInfo | undefined;
  /** The first token of a decoder with an encoder, `decoder_start_token_id`; undefined without one. */
  readonly decoderStart: number | undefined;
  /** Of a causal model's generation_config.json, or of config.json if there is none; no rules for others. */
  readonly rules: TokenRules;
  /** Likewise. */
  readonly generation: GenerationDefaults;
}

/**
 * Changes the logits of the next token, (vocabSize) numbers, in place before one is chosen: -Infinity forbids a token. `ids` are all
 * tokens so far, the prompt's and the new ones; of a decoder with an encoder, the decoder's.
 */
export type LogitsProcessor = (ids: Int32Array, logits: Float32Array) => void;

/** Options of {@link Model.prefix}. Every text that begins with the prefix has the same options. */
export interface PrefixOptions extends PassOptions, EncodeOptions {
  /** Type of the cached keys and values; default `'f32'`. */
  readonly cacheType?: 'f32' | 'f16' | 'bf16' | 'int8' | undefined;
  /** Aborting ends the call, or the iteration of {@link Model.generate}, with `E_ABORTED`. Default none. */
  readonly signal?: PlatformAbortSignal | undefined;
}

/** Keys and values of the begin of prompts, for {@link GenerateOptions.prefix}. Dispose it to free its memory. */
export interface Prefix extends DisposableObject {
  /** Its token ids. */
  readonly ids: readonly number[];
  /** Frees its memory. Generations that have begun go on. */
  dispose(): void;
}

/** Options of {@link Model.generate}. The defaults of its rules about tokens are in {@link ModelInfo.rules}. */
export interface GenerateOptions extends PrefixOptions, ChosenRules {
  /**
   * Most new tokens, a whole number or Infinity; default 128, or what {@link ModelInfo.generation} says of an encoder–decoder model.
   * The model ends the text with the token after its last position, and memory grows with the tokens.
   */
  readonly maxNewTokens?: number | undefined;
  /** Default 0: always the likeliest token. Else logits are divided by it, and a token is drawn. */
  readonly temperature?: number | undefined;
  /** Draws only from the k likeliest tokens; default 0, all. */
  readonly topK?: number | undefined;
  /** Draws only from the likeliest tokens whose probabilities first sum to p or more; default 1. */
  readonly topP?: number | undefined;
  /**
   * Logits of tokens that occurred are divided by it if positive, else multiplied (arXiv:1909.05858); 1 is none. Default: as
   * {@link ModelInfo.generation}.
   */
  readonly repetitionPenalty?: number | undefined;
  /** Seed of the random numbers, a whole number from 0 to 2⁵³ − 1; default 0. The same seed gives the same tokens. */
  readonly seed?: number | undefined;
  /**
   * Called before each token is chosen, for grammars such as JSON's. The order is: logitsProcessor, probabilities of topTokens, forced
   * and suppressed tokens, repetitionPenalty, temperature, topK, topP. What it throws ends the generation and is thrown by it; to
   * forbid all tokens, or a NaN, is an `E_OPTION`. It runs on the calling thread, also for a model in workers. Not with beams.
   */
  readonly logitsProcessor?: LogitsProcessor | undefined;
  /**
   * Tokens that follow an earlier occurrence of the last ones are tried together, at most this many (0 to 64) in one pass: faster for
   * texts that repeat their prompt. Tokens that would be chosen anyway are accepted. The text is the same as without this option, unless
   * two logits are as near as the rounding of a pass of several tokens. Default 0: no such tokens are tried. Not with beams.
   */
  readonly promptLookupNumTokens?: number | undefined;
  /** The most tokens whose earlier occurrence is looked for, with `promptLookupNumTokens`; default 2. */
  readonly maxMatchingNgramSize?: number | undefined;
  /**
   * The begin of the prompt, by {@link Model.prefix}: `prompt` is still the whole prompt, and what it has in common with the prefix is
   * not computed again. Has its own `cacheType` and `headScales`; not with `edits`, and not with beams. Default none.
   */
  readonly prefix?: Prefix | undefined;
  /** Texts and token ids that end the generation, in addition to the model's own; their text is not given. */
  readonly stop?: readonly (string | number)[] | undefined;
  /** Each step gives as many of the likeliest tokens with their probabilities, at most 100; default 0, none. */
  readonly topTokens?: number | undefined;
  /**
   * Changes of values inside the model for every token, of the prompt and of the new text: as {@link Edit}, but `tokens` are
   * positions in the whole text, and the text grows, so that a value has one row for each of them, or one row for all tokens.
   * `replace` is not possible, and values of `scores` and `pattern` have one number for all keys. With edits of
   * these two, each step on the CPU computes all tokens. Default none.
   */
  readonly edits?: readonly SessionEdit[] | undefined;
  /**
   * Sequences that are searched side by side for the likeliest one, at most 64; 1: none. With more, `temperature` must be 0, and all
   * steps come when the search has ended. Default: as {@link ModelInfo.generation}, but 1 beside an option that is not for beams.
   */
  readonly numBeams?: number | undefined;
  /**
   * With beams: the log-probability of a sequence that ended is divided by (its length)^lengthPenalty. Default: as
   * {@link ModelInfo.generation}.
   */
  readonly lengthPenalty?: number | undefined;
  /**
   * When a search ends, after `numBeams` sequences have ended: true at once; false when no other would be better if it ended now;
   * `'never'` when no other can become better. As in transformers. Default: as {@link ModelInfo.generation}.
   */
  readonly earlyStopping?: boolean | 'never' | undefined;
  /** Encoder–decoder models: what the text begins with, as {@link InputOptions.decoderInput}; it is not part of the new text. */
  readonly decoderInput?: ModelInput | undefined;
  /** Encoder–decoder models: changes of values inside the encoder, as {@link InputOptions.encoderEdits}. */
  readonly encoderEdits?: InputOptions['encoderEdits'];
}

/** A message of a chat. */
export interface ChatMessage {
  /** Who speaks: `'system'`, `'user'`, `'assistant'`, or another role of the folder's chat template. */
  readonly role: string;
  /** What is said. */
  readonly content: string;
  /** Whatever else the template reads. */
  readonly [more: string]: unknown;
}

/**
 * A text, token ids, or messages. Messages become a text by the chat template of the folder, `chat_template.jinja` or
 * `chat_template` in `tokenizer_config.json`, with the begin of an answer. They need the optional peer dependency
 * `@huggingface/jinja`. The template has the special tokens: by default `addSpecialTokens` is false.
 */
export type ChatInput = ModelInput | readonly ChatMessage[];

/**
 * Why a generation ended: with a token or text that ends it (`'stop'`), or because of `maxNewTokens` or the model's last position
 * (`'length'`).
 */
export type FinishReason = 'stop' | 'length';

/** The result of {@link Model.complete}. */
export interface Completion {
  /** The new text, without a stop; empty if the prompt was token ids and there is no tokenizer. */
  readonly text: string;
  /** The new token ids. A stop id is the last one. */
  readonly ids: readonly number[];
  /** Number of tokens that `promptLookupNumTokens` found, and that needed no pass of their own. */
  readonly accepted: number;
  /** Why it ended. */
  readonly finishReason: FinishReason;
}

/** A token that a model finds likely. */
export interface TopToken {
  /** Token id. */
  readonly token: number;
  /** Its share of the softmax of the logits, before temperature and repetition penalty. */
  readonly probability: number;
}

/** A step of {@link Model.generate}. */
export interface GeneratedToken {
  /** Token id. */
  readonly token: number;
  /**
   * New text. The texts of all steps, one after another, are the text that decode() gives for their tokens, without a stop.
   * Empty while a character is incomplete, and if the prompt was token ids and there is no tokenizer.
   */
  readonly text: string;
  /** The likeliest tokens in this place, the likeliest first; empty without the option `topTokens`. */
  readonly topTokens: readonly TopToken[];
  /** True if `promptLookupNumTokens` found it, and it needed no pass of its own. */
  readonly accepted: boolean;
  /** Why the generation ended, in its last step; undefined before. */
  readonly finishReason: FinishReason | undefined;
}

/** Options of {@link Model.attentions}. */
export interface AttentionsOptions extends InputOptions {
  /** The layer, from 0. Default: all layers, which are one more axis in front. */
  readonly layer?: number | undefined;
  /** The query head, from 0. Default: all heads, which are one more axis before the queries. */
  readonly head?: number | undefined;
}

/** Options of {@link Model.embed}. */
export interface EmbedOptions extends PassOptions {
  /** Default: as the folder says, {@link ModelInfo.pooling}. */
  readonly pooling?: Pooling | undefined;
  /**
   * Default true: vectors have Euclidean length 1. If false, they are what the folder's modules give, as in
   * sentence-transformers: of length 1 only if there is a Normalize.
   */
  readonly normalize?: boolean | undefined;
  /**
   * Cuts what is longer than {@link ModelInfo.maxSeqLength}, or `maxTokens` if that is 0: texts before their last special
   * tokens, token ids at their end. False cuts nothing. Default: true if the folder says a maxSeqLength.
   */
  readonly truncate?: boolean | undefined;
  /** A text that is put before each text, not before token ids. Default: the default prompt of the folder, if there is one. */
  readonly prompt?: string | undefined;
  /** Name of a prompt of `config_sentence_transformers.json`, in place of `prompt`. */
  readonly promptName?: string | undefined;
  /** Aborting rejects with `E_ABORTED`. Default none. */
  readonly signal?: PlatformAbortSignal | undefined;
  /** Called after each batch with the number of vectors so far and of all. Default none. */
  readonly onProgress?: ((done: number, total: number) => void) | undefined;
}

/** Options of {@link Model.embedImages}, as in {@link EmbedOptions}. `pooling` is by default the first token, in SigLIP the pooler. */
export type EmbedImagesOptions = Pick<EmbedOptions, 'pooling' | 'normalize' | 'headScales' | 'signal' | 'onProgress'>;

/** Options of {@link Model.logits}. */
export interface LogitsOptions extends InputOptions {
  /** Language models: logits after the last token alone, the default, or after each token. */
  readonly positions?: 'last' | 'all' | undefined;
}

/** Names of the outputs of {@link Model.forward}. */
export type ForwardOutput = 'hiddenStates' | 'lastHiddenState' | 'logits' | 'poolerOutput' | 'encoderLastHiddenState';

/** Options of {@link Model.forward}. */
export type ForwardOptions<R extends readonly ForwardOutput[] | undefined> = InputOptions &
  (R extends readonly ForwardOutput[]
    ? {
        /** The outputs to compute. Default: the logits, or the last hidden state of a model that has none. */
        readonly return: R;
      }
    : {
        /** Default: the logits, or the last hidden state of a model that has none. */
        readonly return?: R;
      });

/**
 * The outputs of {@link Model.forward}: `hiddenStates` (numLayers + 1, N, embedDim), `lastHiddenState` (N, embedDim),
 * `logits` (N, vocabSize), (N, numLabels) or (numLabels), `poolerOutput` (embedDim), `encoderLastHiddenState` (S, embedDim).
 */
export type ForwardResult<R extends readonly ForwardOutput[]> = Readonly<Record<R[number], ModelArray>>;

/** The outputs of {@link Model.forward} without `return`: the first one, or without logits the second. */
export type DefaultForwardResult = Partial<ForwardResult<readonly ['logits', 'lastHiddenState']>>;

/** Options of {@link Model.run}. */
export interface RunOptions extends InputOptions {
  /** Values to read, in the order of the result. Those of edited places are read after the edit. Default none. */
  readonly capture?: readonly Capture[] | undefined;
  /**
   * Logits after each token, the default, after the last token alone, or none: the pass then ends with the last layer that is
   * captured. Models without logits give the last hidden state in place of `'all'`, and `'last'` is for language models.
   */
  readonly logits?: 'all' | 'last' | 'none' | undefined;
}

/** The result of {@link Model.run}. */
export interface RunResult extends DefaultForwardResult {
  /**
   * The captured values, in the order of `capture`, with the shapes of {@link Site}. `scores` are -Infinity for keys that a query
   * does not see, and `pattern` is 0.
   */
  readonly captures: readonly ModelArray[];
}

/** Options of {@link Model.trainer}. `recompute` must be false, and `seed` changes nothing: models of folders have no dropout. */
export interface ModelTrainerOptions extends TrainerOptions {
  /**
   * Layers whose parameters are trained, from 0; layers that share parameters are trained together. Layers below the first of them
   * are not differentiated, which saves their time and memory. Default: everything is trained, embeddings, norms and output, too.
   */
  readonly layers?: readonly number[] | undefined;
}

/** What a step learns from: the arguments of {@link TrainerBase.step}, and a batch of `train()` of `multihead/training`. */
export interface ModelBatch {
  /** (batch · N) token ids. */
  readonly tokens: Int32Array<ArrayBuffer>;
  /** (batch · N) the token after each position, or −1. */
  readonly targets: Int32Array<ArrayBuffer>;
  /** Number of sequences. */
  readonly batch: number;
}

/**
 * Trains a copy of a causal language model to predict the next tokens, by gradient descent on their cross-entropy. It works as the
 * trainer of a transformer of `multihead` does, and `train()` of `multihead/training` takes it, too. Every call blocks its thread: in a
 * page, open and train the model in a worker of your own. The names of parameters are those of the model's files. Gains that a family
 * stores minus 1 (Gemma) are in gradients() and stateDict() as they are used.
 */
export interface ModelTrainer extends TrainerBase<BatchOptions> {
  /**
   * The model of the trained copies, which sees every update: a running generate() goes on with keys and values of older ones. What is not trained it shares with the
   * model that it was made of. It is disposed by itself: it stays after dispose() of the trainer, which frees gradients and
   * moments, and of the first model.
   */
  readonly model: Model;
  /**
   * Makes a batch of texts, or token ids: each token's target is the token after it. Shorter texts are padded at their end; padding
   * and last tokens have the target −1. A text gets the special tokens of its tokenizer, not the token that ends a text.
   *
   * @throws {MultiheadError} `E_OPTION` without a tokenizer, and for a text that is empty or longer than
   *   {@link ModelInfo.maxTokens}; `E_DISPOSED`
   */
  batchOf(texts: string | readonly ModelInput[]): Promise<ModelBatch>;
}

/** Options of saveModel(). */
export interface SaveModelOptions {
  /**
   * Type of all tensors; default `'f32'`, which is exact, but rounds trained gains that a family stores minus 1 (Gemma) once.
   * `'asInMemory'`: the type that each has in memory, which is what `weights` of openModel() has made of it.
   */
  readonly dtype?: 'f32' | 'f16' | 'bf16' | 'asInMemory' | undefined;
}

/**
 * A model that openModel() has opened. Dispose it to free its memory, and to end its workers. Passes with `pixels` ignore
 * their input. If a worker of the model ends, its calls are rejected with `E_WORKER`, and so are all later ones.
 */
export interface Model extends ModelAnalyses, DisposableObject {
  /** What the model is. */
  readonly info: ModelInfo;
  /** Models of texts and images (CLIP, SigLIP): the tower of images, for passes through it; the model itself is the tower of texts. */
  readonly vision: Model | undefined;
  /** Names of the classes by `id2label` of config.json, `start` and `end` for question answering; empty without classes. */
  readonly labels: readonly string[];
  /**
   * The encoder of an encoder–decoder model as a model by itself, which shares the weights: its attentions, embeddings and values.
   * It is disposed with the model. Undefined for other models.
   */
  readonly encoder: Model | undefined;
  /** Number of workers in which the model lives; 0 if it lives on the calling thread. */
  readonly workers: number;
  /** What computes: `'cpu'`, or `'gpu: …'` with the GPU's name; with `device: 'auto'` followed by the times, or `'cpu: …'` with the reason. */
  readonly device: string;

  /** Token ids and tokens of a text, or of messages. @throws {MultiheadError} `E_OPTION` without a tokenizer. */
  encode(
    text: string | readonly ChatMessage[],
    options?: EncodeOptions,
  ): Promise<{
    /** Token ids. */
    readonly ids: readonly number[];
    /** The tokens as the vocabulary spells them. */
    readonly tokens: readonly string[];
  }>;
  /** The text of token ids, without special tokens. @throws {MultiheadError} `E_OPTION` without a tokenizer. */
  decode(ids: Int32Array | readonly number[]): Promise<string>;

  /**
   * Continues a prompt, token by token. An encoder–decoder model reads the prompt with its encoder and writes a new text. A stop id is given as the last token. The last step says why the generation ended; with
   * `maxNewTokens: 0` there is none. Options and token ids are checked by the call itself, which throws; the steps throw the rest.
   *
   * @throws {MultiheadError} `E_OPTION` for a model that is not a language model, a prompt that is empty or too long, messages
   *   without a chat template or without `@huggingface/jinja`, or a wrong option, and for logits that are not finite; `E_MEMORY`,
   *   `E_ABORTED`
   */
  generate(prompt: ChatInput, options?: GenerateOptions): AsyncGenerator<GeneratedToken, void, undefined>;
  /**
   * The whole continuations of several prompts: each is the same as for its prompt alone, with the seed `seed` + its index. Up to eight
   * are computed side by side, in passes over one token of each, which read the weights once; this changes logits by rounding
   * alone. Not side by side: beams, edits, and models with an encoder. An array of numbers is one prompt, and so is an array of
   * messages. Rejects as generate() throws.
   */
  complete(prompts: readonly ChatInput[], options?: GenerateOptions): Promise<Completion[]>;
  /** The whole continuation of a prompt at once. */
  complete(prompt: ChatInput, options?: GenerateOptions): Promise<Completion>;
  /**
   * Computes the keys and values of the begin of prompts, such as a system prompt, once for all generations that take it as their
   * `prefix`. Logits differ from a pass over the whole prompt by rounding alone, because a pass over fewer tokens adds in another order.
   *
   * @throws {MultiheadError} `E_OPTION`, also for a model with an encoder; `E_MEMORY`, `E_ABORTED`
   */
  prefix(prompt: ChatInput, options?: PrefixOptions): Promise<Prefix>;
  /**
   * One vector of vectorDim numbers for each text: the pooling of the last hidden states, then the Dense and Normalize modules
   * that sentence-transformers keep in the folder. Texts of similar length are computed together. An array of numbers is one
   * input.
   *
   * @throws {MultiheadError} `E_OPTION`, also for a folder with a module of another kind and for vectors that are not finite;
   *   `E_MEMORY`, `E_ABORTED`
   */
  embed(inputs: readonly ModelInput[], options?: EmbedOptions): Promise<Float32Array<ArrayBuffer>[]>;
  /** The vector of one text. */
  embed(input: ModelInput, options?: EmbedOptions): Promise<Float32Array<ArrayBuffer>>;
  /**
   * One vector for each image: of models with pixels, and of CLIP and SigLIP, where vectors of texts and images have one length.
   * A Float32Array is the pixels of an image, prepared already.
   *
   * @throws {MultiheadError} `E_OPTION` for a model without images, and a setting of preprocessor_config.json that is not supported;
   *   `E_FORMAT` without that file; `E_SHAPE`, `E_MEMORY`, `E_ABORTED`
   */
  embedImages(images: readonly (ModelImage | Float32Array)[], options?: EmbedImagesOptions): Promise<Float32Array<ArrayBuffer>[]>;
  /**
   * How well each image fits each text, (images, texts): what the transformers library calls `logits_per_image`. For CLIP their softmax
   * over the texts, for SigLIP the sigmoid of each is a probability.
   *
   * @throws {MultiheadError} `E_OPTION` for a model that is not of texts and images; as embed() and embedImages()
   */
  similarity(texts: readonly ModelInput[], images: readonly (ModelImage | Float32Array)[]): Promise<ModelArray>;
  /**
   * The weights of one head, (N, N): a row for each query; keys that a query does not see are 0. Without `layer`, without
   * `head` or without both, the weights of all of them from one pass, which need memory for all of these maps. Of pixels,
   * position 0 is the class token, and the patches follow row by row.
   *
   * @throws {MultiheadError} `E_OPTION`, `E_MEMORY`
   */
  attentions(input: ModelInput, options?: AttentionsOptions): Promise<ModelArray>;
  /**
   * The weights of cross-attention of an encoder–decoder model, (N, S): a row for each token of `decoderInput`, a column for each
   * token of the input. Layers and heads as in attentions(), which gives the decoder's self-attention; `encoder.attentions(input)`
   * gives the encoder's.
   *
   * @throws {MultiheadError} `E_OPTION`, also for a model without cross-attention; `E_MEMORY`
   */
  crossAttentions(input: ModelInput, options?: AttentionsOptions): Promise<ModelArray>;
  /**
   * Language models: (vocabSize), or (N, vocabSize) with `positions: 'all'`. Masked language models (N, vocabSize),
   * classification (numLabels), token classification (N, numLabels), question answering (N, 2): start and end.
   *
   * @throws {MultiheadError} `E_OPTION` for a model without logits, and for logits that are not finite, with the first
   *   layer whose output is not; `E_MEMORY`
   */
  logits(input: ModelInput, options?: LogitsOptions): Promise<ModelArray>;
  /**
   * One pass with the outputs that `return` names: by default `logits`, or `lastHiddenState` of a model without logits. Hidden states are given as they are, NaN and infinities too.
   *
   * @throws {MultiheadError} `E_OPTION`, also for logits or a pooler output that are not finite; `E_SHAPE`, `E_MEMORY`
   */
  forward<const R extends readonly ForwardOutput[]>(input: ModelInput, options: ForwardOptions<R>): Promise<ForwardResult<R>>;
  /** The logits, or the last hidden state of a model that has none. */
  forward(input: ModelInput, options?: ForwardOptions<undefined>): Promise<DefaultForwardResult>;
  /**
   * One pass in which values inside the model are read with `capture`, and changed with `edits`. Memory is needed only for what
   * is asked for.
   *
   * @throws {MultiheadError} `E_OPTION` for a site that the model does not have, a layer, head or token out of range, and an edit
   *   that makes numbers infinite; `E_SHAPE` for a value of another shape; `E_MEMORY`
   */
  run(input: ModelInput, options?: RunOptions): Promise<RunResult>;

  /**
   * Makes a trainer of a copy of this causal language model, which itself does not change. What is trained is copied as f32; gradients
   * and AdamW's moments take three times as much memory.
   *
   * @throws {MultiheadError} `E_OPTION` for a model that is no causal language model, one in workers, or a wrong option; `E_MEMORY`;
   *   `E_LOAD` if the file of the part `analyses` does not load; see {@link OpenModelOptions.parts}
   */
  trainer(options?: ModelTrainerOptions): Promise<ModelTrainer>;

  /**
   * Frees the model's memory, and that of generations that did not end, and ends its workers: calls that they still run are
   * rejected with `E_DISPOSED`. Doing it twice is harmless.
   */
  dispose(): void;
}

/**
 * Opens a folder as Hugging Face stores it, or a GGUF file. Weights are read in pieces, and only once; the memory never holds them twice.
 *
 * @throws {MultiheadError} `E_OPTION` naming a setting of config.json, or of another file of the folder, that is not supported;
 *   `E_FORMAT` for files that are missing, truncated, of another format or contradict each other; `E_MEMORY`, before weights are read, if they do not fit; `E_LOAD`,
 *   `E_ABORTED`
 */
export type OpenModel = (source: ModelSource, options?: OpenModelOptions) => Promise<Model>;
