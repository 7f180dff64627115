/// \file
/// The library for C, and for every language that can call C: attention and its gradients, prepared
/// calls, and caches of keys and values. attention.h, attention_backward.h, prepared_attention.h,
/// kv_cache.h and context.h define what the calls compute, their shapes, defaults and errors; this
/// header only says how they are written in C.
///
/// ```
/// const int64_t shape[] = {1, 12, 1024, 64};  // batch, heads, tokens, width
/// multihead_tensor q = {q_data, MULTIHEAD_F32, 4, shape, NULL}, k = ..., v = ..., out = ...;
/// multihead_attention_options options = {.size = sizeof options, .causal = MULTIHEAD_TOP_LEFT};
/// multihead_attention_outputs outputs = {.size = sizeof outputs, .out = &out};
/// multihead_error error = {.size = sizeof error};
/// multihead_context *context = NULL;
/// if (multihead_context_create(NULL, &context, &error) ||
///     multihead_attention(context, &q, &k, &v, &options, &outputs, &error)) puts(error.message);
/// multihead_context_destroy(context);
/// ```
///
/// - A function that can fail returns a multihead_code; 0 is success. After a failure
///   `error`, which may be null, says why, and the next call works. Nothing else is written, except
///   after MULTIHEAD_ERROR_ABORTED, as context.h says. No exception leaves a function.
/// - Structs with `size` may get more members at their end. Set `size` to sizeof the struct, and
///   members that you do not need to 0, the default. A program then runs with later versions of the
///   library. It runs with earlier versions while members that they do not know are 0.
/// - An optional tensor, struct or array that is not given is null. The member
///   `data` has no const, but inputs are not written.
/// - An object serves one call at a time, on any thread, and must outlive calls that were prepared
///   with it. Destroying null does nothing.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "multihead/export.h"

#ifdef __cplusplus
#define MULTIHEAD_C_BEGIN extern "C" {  ///< functions of C
#define MULTIHEAD_C_END }               ///< the end of them
#else
#define MULTIHEAD_C_BEGIN  ///< functions of C
#define MULTIHEAD_C_END    ///< the end of them
#endif

MULTIHEAD_PUBLIC_BEGIN
MULTIHEAD_C_BEGIN

/// Kinds of errors, see StatusCode.
typedef enum multihead_code {
  MULTIHEAD_OK = 0,              ///< no error
  MULTIHEAD_ERROR_SHAPE = 1,     ///< a tensor's rank, shape, strides or data do not fit the call
  MULTIHEAD_ERROR_OPTION = 2,    ///< an option has a value outside its definition, or a null handle
  MULTIHEAD_ERROR_MEMORY = 3,    ///< memory could not be allocated
  MULTIHEAD_ERROR_FORMAT = 4,    ///< not returned by the functions of this header
  MULTIHEAD_ERROR_EXCHANGE = 5,  ///< not returned by the functions of this header
  MULTIHEAD_ERROR_DEVICE = 6,    ///< not returned by the functions of this header
  MULTIHEAD_ERROR_ABORTED = 7    ///< multihead_context_options::cancelled ended the call
} multihead_code;

/// Why a call failed. Texts are UTF-8, end with 0 and are cut to their arrays. After a success only
/// `code` is written.
typedef struct multihead_error {
  size_t size;         ///< sizeof(multihead_error)
  int32_t code;        ///< a multihead_code
  int32_t reserved;    ///< 0
  char argument[64];   ///< name of the refused argument
  char expected[224];  ///< its expected value
  char got[224];       ///< its actual value
  char message[512];   ///< one sentence of these
} multihead_error;

/// Element types.
typedef enum multihead_dtype {
  MULTIHEAD_F32 = 0,   ///< float
  MULTIHEAD_F16 = 1,   ///< IEEE 754 binary16
  MULTIHEAD_BF16 = 2,  ///< the upper half of a float
  MULTIHEAD_INT8 = 3,  ///< only as the type of a cache
  MULTIHEAD_BOOL = 4   ///< bytes: 0 is false, all others are true; masks
} multihead_dtype;

/// A view of memory. Will not change.
typedef struct multihead_tensor {
  void* data;              ///< first element; null if it has none, or to prepare a call
  int32_t dtype;           ///< a multihead_dtype
  int32_t rank;            ///< number of extents, at most 8
  const int64_t* shape;    ///< `rank` extents, outermost first
  const int64_t* strides;  ///< `rank` strides in elements; null: row-major without gaps
} multihead_tensor;

/// An array of floats.
typedef struct multihead_floats {
  float* data;   ///< first number
  size_t count;  ///< how many; 0: not given
} multihead_floats;

/// An array of integers.
typedef struct multihead_ints {
  const int32_t* data;  ///< first number
  size_t count;         ///< how many; 0: not given
} multihead_ints;

/// The version of the library that runs: 10000 * major + 100 * minor + patch. multihead/version.h
/// has the version of these headers.
int32_t multihead_version(void);
/// See simd_target() of multihead/context.h.
const char* multihead_simd_target(void);

/// See ContextOptions, whose members have the same names, types and contracts.
typedef struct multihead_context_options {
  size_t size;       ///< sizeof(multihead_context_options)
  int32_t threads;   ///< most threads of a call; 0: all of the machine
  int32_t reserved;  ///< 0
  /// Calls run(state, worker) once for each worker in [0, workers), on threads of the host.
  void (*parallel_for)(void* user, int workers, void (*run)(void* state, int worker), void* state);
  /// Scratch memory from the host. Given with `deallocate` or not at all.
  void* (*allocate)(void* user, size_t bytes, size_t alignment);
  /// Takes scratch memory back.
  void (*deallocate)(void* user, void* memory, size_t bytes, size_t alignment);
  /// True ends the call with MULTIHEAD_ERROR_ABORTED. Called from several threads.
  bool (*cancelled)(void* user);
  /// Told of each step of a call, in nanoseconds of a clock that only grows.
  void (*profile)(void* user, const char* step, int64_t begin, int64_t end);
  void* user;  ///< the first argument of these functions
} multihead_context_options;

/// Threads and scratch memory, see Context.
typedef struct multihead_context multihead_context;
/// Makes a context; `options` may be null. Errors: MULTIHEAD_ERROR_OPTION, MULTIHEAD_ERROR_MEMORY.
multihead_code multihead_context_create(const multihead_context_options* options,
                                        multihead_context** context, multihead_error* error);
/// Ends a context and gives its memory back.
void multihead_context_destroy(multihead_context* context);
/// Bytes of scratch memory held now; 0 for null.
size_t multihead_context_scratch_bytes(const multihead_context* context);

/// See Alignment.
typedef enum multihead_alignment {
  MULTIHEAD_NOT_ALIGNED = 0,             ///< not stated; as `causal`: every key is visible
  MULTIHEAD_TOP_LEFT = 1,                ///< query i is at key i
  MULTIHEAD_BOTTOM_RIGHT = 2,            ///< the last query is at the last key
  MULTIHEAD_BOTTOM_RIGHT_OF_LENGTH = 3,  ///< the last query is at the last key of kv_lengths
  MULTIHEAD_OFFSET = 4                   ///< query i is at key i + offset
} multihead_alignment;

/// See Rope.
typedef struct multihead_rope {
  size_t size;                 ///< sizeof(multihead_rope)
  int32_t half;                ///< 0: pairs (2c, 2c + 1); 1: pairs (c, c + rotary_dim / 2)
  int32_t reserved;            ///< 0
  double base;                 ///< base of the angles; 0 is 10000
  int64_t rotary_dim;          ///< even; 0: the whole width
  multihead_ints q_positions;  ///< (N_q) or (B * N_q); not given: from the alignment
  multihead_ints k_positions;  ///< (N_k) or (B * N_k); not given: 0, 1, 2, ...
} multihead_rope;

/// See AttentionOptions.
typedef struct multihead_attention_options {
  size_t size;                    ///< sizeof(multihead_attention_options)
  bool has_scale;                 ///< false: the scale is 1 / sqrt(d_k)
  bool has_window;                ///< false: the members window_* are not read
  bool qk_norm;                   ///< queries and keys are normalized
  bool bf16;                      ///< multiplies in bf16 where the processor can
  float scale;                    ///< factor on Q K^T
  int32_t causal;                 ///< a multihead_alignment
  int32_t window_alignment;       ///< a multihead_alignment
  int64_t causal_offset;          ///< of MULTIHEAD_OFFSET
  int64_t window_left;            ///< visible keys before the query's; -1: all
  int64_t window_right;           ///< visible keys after the query's; -1: all
  int64_t window_offset;          ///< of MULTIHEAD_OFFSET
  const multihead_tensor* mask;   ///< MULTIHEAD_BOOL: true may attend
  const multihead_tensor* bias;   ///< MULTIHEAD_F32: added to the scores
  multihead_ints kv_lengths;      ///< (B)
  multihead_floats alibi_slopes;  ///< (H_q)
  multihead_floats sinks;         ///< (H_q)
  multihead_floats q_gain;        ///< (d_k), of qk_norm; not given: 1
  multihead_floats k_gain;        ///< (d_k), of qk_norm; not given: 1
  float qk_norm_eps;              ///< of qk_norm; 0 is 0, 1e-6 is usual
  float softcap;                  ///< bound on the scores; 0: none
  const multihead_rope* rope;     ///< rotary position embedding
  uint64_t dropout_seed;          ///< of dropout
  float dropout;                  ///< probability that a weight is dropped; 0: none
  int32_t reserved;               ///< 0
} multihead_attention_options;

/// See AttentionOutputs.
typedef struct multihead_attention_outputs {
  size_t size;                           ///< sizeof(multihead_attention_outputs)
  const multihead_tensor* out;           ///< (B, H_q, N_q, d_v), f32, f16 or bf16
  const multihead_tensor* lse;           ///< (B, H_q, N_q), f32
  const multihead_tensor* weights;       ///< (B, H_q, N_q, N_k), f32
  const multihead_tensor* dropout_mask;  ///< (B, H_q, N_q, N_k), MULTIHEAD_BOOL
} multihead_attention_outputs;

/// See attention() of multihead/attention.h. `options` may be null.
multihead_code multihead_attention(multihead_context* context, const multihead_tensor* q,
                                   const multihead_tensor* k, const multihead_tensor* v,
                                   const multihead_attention_options* options,
                                   const multihead_attention_outputs* outputs,
                                   multihead_error* error);

/// See AttentionResults.
typedef struct multihead_attention_results {
  size_t size;                  ///< sizeof(multihead_attention_results)
  const multihead_tensor* out;  ///< (B, H_q, N_q, d_v)
  const multihead_tensor* lse;  ///< (B, H_q, N_q), f32
  bool trusts_lse;              ///< no row of lse is compared with the inputs
} multihead_attention_results;

/// See AttentionGradients. Each is optional, f32, and overwritten.
typedef struct multihead_attention_gradients {
  size_t size;                     ///< sizeof(multihead_attention_gradients)
  const multihead_tensor* d_q;     ///< as q
  const multihead_tensor* d_k;     ///< as k
  const multihead_tensor* d_v;     ///< as v
  const multihead_tensor* d_bias;  ///< as options.bias
  multihead_floats d_sinks;        ///< (H_q)
  multihead_floats d_q_gain;       ///< (d_k)
  multihead_floats d_k_gain;       ///< (d_k)
} multihead_attention_gradients;

/// See attention_backward() of multihead/attention_backward.h. `options` may be null.
multihead_code multihead_attention_backward(multihead_context* context, const multihead_tensor* q,
                                            const multihead_tensor* k, const multihead_tensor* v,
                                            const multihead_attention_options* options,
                                            const multihead_attention_results* results,
                                            const multihead_tensor* d_out,
                                            const multihead_attention_gradients* gradients,
                                            multihead_error* error);

/// A call of multihead_attention() that is checked and planned once, see PreparedAttention.
typedef struct multihead_prepared multihead_prepared;
/// Prepares a call. q, k, v, out and lse need no data yet; all other arrays stay the caller's.
multihead_code multihead_prepared_create(multihead_context* context, const multihead_tensor* q,
                                         const multihead_tensor* k, const multihead_tensor* v,
                                         const multihead_attention_options* options,
                                         const multihead_attention_outputs* outputs,
                                         multihead_prepared** prepared, multihead_error* error);
/// Runs a prepared call on this data; `lse` may be null.
multihead_code multihead_prepared_run(multihead_prepared* prepared, const void* q, const void* k,
                                      const void* v, void* out, float* lse, multihead_error* error);
/// Ends a prepared call.
void multihead_prepared_destroy(multihead_prepared* prepared);

/// Order of a cache's tokens in memory, see KVCacheConfig::Layout.
typedef enum multihead_cache_layout {
  MULTIHEAD_CONTIGUOUS = 0,  ///< one block for each entry
  MULTIHEAD_RING = 1,        ///< new tokens overwrite the oldest
  MULTIHEAD_PAGED = 2        ///< pages of a pool
} multihead_cache_layout;

/// See KVCacheConfig.
typedef struct multihead_cache_config {
  size_t size;           ///< sizeof(multihead_cache_config)
  int64_t batch;         ///< entries; 0 is 1
  int64_t num_kv_heads;  ///< 1 or more
  int64_t head_dim;      ///< 1 or more
  int64_t value_dim;     ///< 1 or more
  int64_t capacity;      ///< tokens of an entry; 1 or more
  int64_t page_size;     ///< tokens of a page; 0 is 16
  int64_t pages;         ///< pages of the pool; 0: enough for every entry
  int32_t layout;        ///< a multihead_cache_layout
  int32_t type;          ///< a multihead_dtype: how keys and values are stored
  bool values_in_keys;   ///< a value is the first part of its key, and not stored
} multihead_cache_config;

/// Keys and values of past tokens, see KVCache.
typedef struct multihead_cache multihead_cache;
/// Makes a cache and allocates all of its memory.
multihead_code multihead_cache_create(const multihead_cache_config* config, multihead_cache** cache,
                                      multihead_error* error);
/// Frees a cache.
void multihead_cache_destroy(multihead_cache* cache);
/// Appends tokens. `counts` (B) may be not given, `context` null: then the calling thread writes.
multihead_code multihead_cache_append(multihead_cache* cache, const multihead_tensor* k,
                                      const multihead_tensor* v, multihead_ints counts,
                                      multihead_context* context, multihead_error* error);
/// Attention over the cached tokens. `options` may be null.
multihead_code multihead_cache_attend(const multihead_cache* cache, const multihead_tensor* q,
                                      const multihead_attention_options* options,
                                      const multihead_attention_outputs* outputs,
                                      multihead_context* context, multihead_error* error);
/// Truncates an entry to its first `length` tokens.
multihead_code multihead_cache_truncate(multihead_cache* cache, int64_t entry, int64_t length,
                                        multihead_error* error);
/// Number of tokens of an entry; 0 if there is no such entry, or for null.
int64_t multihead_cache_length(const multihead_cache* cache, int64_t entry);

/// See rotate() of multihead/rope.h: x and y (B, H, N, d), f32; for keys before they are appended.
multihead_code multihead_rotate(multihead_context* context, const multihead_tensor* x,
                                multihead_ints positions, const multihead_rope* rope,
                                const multihead_tensor* y, multihead_error* error);

MULTIHEAD_C_END
MULTIHEAD_PUBLIC_END
