/* Loads the library whose path is the argument at run time, as other languages do. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include <multihead/c.h>
#include <multihead/version.h>

/* ISO C converts no pointer of data to one of a function. */
static void look_up(void* library, const char* name, void* function) {
  void* const symbol = dlsym(library, name);
  memcpy(function, &symbol, sizeof symbol);
}

int main(int count, char** arguments) {
  static const int64_t shape[] = {1, 1, 1, 1};
  float x = 3.0F, y = 0.0F;
  const multihead_tensor in = {&x, MULTIHEAD_F32, 4, shape, NULL};
  const multihead_tensor out = {&y, MULTIHEAD_F32, 4, shape, NULL};
  const multihead_attention_outputs outputs = {.size = sizeof outputs, .out = &out};
  multihead_context* context = NULL;
  int32_t (*version)(void) = NULL;
  multihead_code (*create)(const multihead_context_options*, multihead_context**,
                           multihead_error*) = NULL;
  multihead_code (*attention)(multihead_context*, const multihead_tensor*, const multihead_tensor*,
                              const multihead_tensor*, const multihead_attention_options*,
                              const multihead_attention_outputs*, multihead_error*) = NULL;
  void (*destroy)(multihead_context*) = NULL;
  void* const library = count == 2 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  if (library == NULL) return puts(count == 2 ? dlerror() : "expected the library's path"), 1;
  look_up(library, "multihead_version", &version);
  look_up(library, "multihead_context_create", &create);
  look_up(library, "multihead_attention", &attention);
  look_up(library, "multihead_context_destroy", &destroy);
  if (version == NULL || create == NULL || attention == NULL || destroy == NULL) return 2;
  if (version() / 100 != 100 * MULTIHEAD_VERSION_MAJOR + MULTIHEAD_VERSION_MINOR) return 3;
  if (create(NULL, &context, NULL) != MULTIHEAD_OK) return 4;
  if (attention(context, &in, &in, &in, NULL, &outputs, NULL) != MULTIHEAD_OK || y != 3.0F)
    return 5;
  destroy(context);
  return puts("loaded") < 0;
}
