/// \file
/// Includes all headers of the library multihead. safetensors.h, models.h, lab.h, distributed.h and
/// cuda.h are not part of it: they belong to the libraries multihead::safetensors,
/// multihead::models, multihead::lab, multihead::distributed and multihead::cuda. Nor is c.h, which
/// has the same calls for C.

/// \namespace multihead
/// The public interface.
#pragma once

#include "multihead/activations.h"                  // IWYU pragma: export
#include "multihead/attention.h"                    // IWYU pragma: export
#include "multihead/attention_backward.h"           // IWYU pragma: export
#include "multihead/context.h"                      // IWYU pragma: export
#include "multihead/elementwise.h"                  // IWYU pragma: export
#include "multihead/export.h"                       // IWYU pragma: export
#include "multihead/kv_cache.h"                     // IWYU pragma: export
#include "multihead/latent_attention.h"             // IWYU pragma: export
#include "multihead/linear.h"                       // IWYU pragma: export
#include "multihead/multi_head_attention.h"         // IWYU pragma: export
#include "multihead/precision.h"                    // IWYU pragma: export
#include "multihead/prepared_attention.h"           // IWYU pragma: export
#include "multihead/prepared_attention_backward.h"  // IWYU pragma: export
#include "multihead/rope.h"                         // IWYU pragma: export
#include "multihead/state_dict.h"                   // IWYU pragma: export
#include "multihead/status.h"                       // IWYU pragma: export
#include "multihead/tensor.h"                       // IWYU pragma: export
#include "multihead/trace.h"                        // IWYU pragma: export
#include "multihead/training.h"                     // IWYU pragma: export
#include "multihead/transformer.h"                  // IWYU pragma: export
#include "multihead/version.h"                      // IWYU pragma: export
#include "multihead/weights.h"                      // IWYU pragma: export
