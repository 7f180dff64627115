/* multihead/c.h in C11: every function once, and errors. tests/packaging/cmake.test.mjs compiles it
   as a program of its own, for an installed library. */
#include <multihead/c.h>
#include <multihead/version.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition) \
  if (!(condition)) return #condition
#define HEADS 2
#define TOKENS 6
#define WIDTH 8
#define FLOATS (HEADS * TOKENS * WIDTH)

struct host {
  int blocks, steps, cancels;
};

static void* allocate(void* user, size_t bytes, size_t alignment) {
  ++((struct host*)user)->blocks;
  return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void deallocate(void* user, void* memory, size_t bytes, size_t alignment) {
  (void)bytes;
  (void)alignment;
  --((struct host*)user)->blocks;
  free(memory);
}

static void parallel_for(void* user, int workers, void (*run)(void* state, int worker),
                         void* state) {
  (void)user;
  for (int worker = 0; worker < workers; ++worker) run(state, worker);
}

static bool cancelled(void* user) { return ((struct host*)user)->cancels != 0; }

static void profile(void* user, const char* step, int64_t begin, int64_t end) {
  ((struct host*)user)->steps += step[0] != 0 && begin <= end;
}

static int all_near(const float* numbers, float value) {
  for (int i = 0; i < FLOATS; ++i) {
    if (numbers[i] < value - 1e-5F || numbers[i] > value + 1e-5F) return 0;
  }
  return 1;
}

/* Returns the condition that does not hold, or null. */
const char* multihead_c_program(void);
const char* multihead_c_program(void) {
  static float x[FLOATS], values[FLOATS], out[FLOATS], lse[HEADS * TOKENS], gradient[FLOATS];
  const int64_t shape[] = {1, HEADS, TOKENS, WIDTH};
  const int64_t packed[] = {FLOATS, WIDTH, HEADS * WIDTH, 1};
  const multihead_tensor q = {x, MULTIHEAD_F32, 4, shape, NULL};
  const multihead_tensor v = {values, MULTIHEAD_F32, 4, shape, packed};
  const multihead_tensor to = {out, MULTIHEAD_F32, 4, shape, NULL};
  const multihead_tensor rows = {lse, MULTIHEAD_F32, 3, shape, NULL};
  const multihead_tensor d = {gradient, MULTIHEAD_F32, 4, shape, NULL};
  struct host host = {0, 0, 0};
  multihead_error error = {.size = sizeof error};
  multihead_context* context = NULL;
  const multihead_context_options with = {.size = sizeof with,
                                          .threads = 2,
                                          .parallel_for = parallel_for,
                                          .allocate = allocate,
                                          .deallocate = deallocate,
                                          .cancelled = cancelled,
                                          .profile = profile,
                                          .user = &host};
  const multihead_attention_outputs outputs = {.size = sizeof outputs, .out = &to, .lse = &rows};
  multihead_attention_options options = {.size = sizeof options, .causal = MULTIHEAD_TOP_LEFT};
  const multihead_attention_results results = {.size = sizeof results, .out = &to, .lse = &rows};
  const multihead_attention_gradients gradients = {.size = sizeof gradients, .d_v = &d};
  for (int i = 0; i < FLOATS; ++i) {
    x[i] = 0.1F * (float)(i % 7);
    values[i] = 2.0F;
  }

  CHECK(multihead_version() ==
        10000 * MULTIHEAD_VERSION_MAJOR + 100 * MULTIHEAD_VERSION_MINOR + MULTIHEAD_VERSION_PATCH);
  CHECK(strlen(multihead_simd_target()) > 0);
  CHECK(multihead_context_create(&with, &context, &error) == MULTIHEAD_OK);
  CHECK(multihead_attention(context, &q, &q, &v, &options, &outputs, &error) == MULTIHEAD_OK);
  CHECK(error.code == MULTIHEAD_OK && all_near(out, 2.0F));
  CHECK(host.steps > 0 && host.blocks > 0 && multihead_context_scratch_bytes(context) > 0);
  CHECK(multihead_attention_backward(context, &q, &q, &v, &options, &results, &v, &gradients,
                                     &error) == MULTIHEAD_OK);
  CHECK(gradient[0] > 2.0F); /* all queries see the first key */

  /* Errors name their argument, write nothing, and the next call works. */
  memset(out, 0, sizeof out);
  options.softcap = -1.0F;
  CHECK(multihead_attention(context, &q, &q, &v, &options, &outputs, &error) ==
        MULTIHEAD_ERROR_OPTION);
  CHECK(error.code == MULTIHEAD_ERROR_OPTION && strcmp(error.argument, "softcap") == 0);
  CHECK(strstr(error.message, "softcap: expected ") == error.message && all_near(out, 0.0F));
  options.softcap = 0.0F;
  host.cancels = 1;
  CHECK(multihead_attention(context, &q, &q, &v, &options, &outputs, NULL) ==
        MULTIHEAD_ERROR_ABORTED);
  host.cancels = 0;
  CHECK(multihead_attention(NULL, &q, &q, &v, &options, &outputs, &error) ==
        MULTIHEAD_ERROR_OPTION);
  CHECK(strcmp(error.argument, "context") == 0 && strcmp(error.got, "null") == 0);
  CHECK(multihead_attention(context, NULL, &q, &v, &options, &outputs, &error) ==
        MULTIHEAD_ERROR_SHAPE);
  CHECK(multihead_attention(context, &q, &q, &v, &options, &outputs, &error) == MULTIHEAD_OK);
  CHECK(all_near(out, 2.0F));

  /* A prepared call. */
  {
    multihead_prepared* forward = NULL;
    memset(out, 0, sizeof out);
    CHECK(multihead_prepared_create(context, &q, &q, &v, NULL, &outputs, &forward, &error) ==
          MULTIHEAD_OK);
    CHECK(multihead_prepared_run(forward, x, x, values, out, lse, &error) == MULTIHEAD_OK);
    CHECK(all_near(out, 2.0F));
    CHECK(multihead_prepared_run(forward, NULL, x, values, out, lse, &error) ==
          MULTIHEAD_ERROR_SHAPE);
    CHECK(multihead_prepared_run(NULL, x, x, values, out, lse, &error) == MULTIHEAD_ERROR_OPTION);
    multihead_prepared_destroy(forward);
  }

  /* A cache. */
  {
    multihead_cache* cache = NULL;
    const multihead_cache_config config = {.size = sizeof config,
                                           .num_kv_heads = HEADS,
                                           .head_dim = WIDTH,
                                           .value_dim = WIDTH,
                                           .capacity = TOKENS,
                                           .type = MULTIHEAD_BF16};
    const multihead_ints all = {NULL, 0};
    const multihead_rope rope = {.size = sizeof rope, .half = 1};
    const int32_t positions[TOKENS] = {0, 1, 2, 3, 4, 5};
    const multihead_ints at = {positions, TOKENS};
    memset(out, 0, sizeof out);
    CHECK(multihead_rotate(context, &q, at, &rope, &d, &error) == MULTIHEAD_OK);
    CHECK(multihead_cache_create(&config, &cache, &error) == MULTIHEAD_OK);
    CHECK(multihead_cache_append(cache, &d, &v, all, NULL, &error) == MULTIHEAD_OK);
    CHECK(multihead_cache_length(cache, 0) == TOKENS && multihead_cache_length(cache, 1) == 0);
    CHECK(multihead_cache_append(cache, &d, &v, all, context, &error) == MULTIHEAD_ERROR_OPTION);
    CHECK(multihead_cache_attend(cache, &q, NULL, &outputs, context, &error) == MULTIHEAD_OK);
    CHECK(all_near(out, 2.0F));
    CHECK(multihead_cache_truncate(cache, 0, 2, &error) == MULTIHEAD_OK);
    CHECK(multihead_cache_length(cache, 0) == 2 && multihead_cache_length(NULL, 0) == 0);
    multihead_cache_destroy(cache);
    multihead_cache_destroy(NULL);
  }
  multihead_context_destroy(context);
  multihead_context_destroy(NULL);
  CHECK(host.blocks == 0);
  return NULL;
}

#ifdef MULTIHEAD_C_MAIN
int main(void) {
  const char* const failed = multihead_c_program();
  return puts(failed == NULL ? "multihead in C" : failed) < 0 || failed != NULL;
}
#endif
