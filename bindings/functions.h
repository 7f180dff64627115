// Functions that JavaScript calls. embind.cpp lists them.
#pragma once

#include <cstdint>
#include <type_traits>

namespace multihead::bindings {

#define WIRE_FUNCTION(javascript, function, signature) std::type_identity_t<signature> function;
#define WIRE_MODELS_FUNCTION WIRE_FUNCTION
#ifdef MULTIHEAD_GPU
// Exported without Embind, whose glue would be larger than the plans.
#define WIRE_EXPORT(javascript, function, signature) \
  __attribute__((export_name(#javascript))) std::type_identity_t<signature> function;
#define WIRE_BASE_FUNCTION WIRE_EXPORT
#define WIRE_PLANNED_FUNCTION WIRE_EXPORT
#define WIRE_GPU_FUNCTION WIRE_EXPORT
#endif
#include "wire.inc"

// Functions that are called in loops are no WIRE_FUNCTIONs: Embind's conversions take 0.13 us and
// leave 200 bytes of garbage per call.

// Returns an address of 64-byte alignment, or 0 if no memory is left.
extern "C" uint32_t multihead_allocate(uint32_t bytes);
extern "C" void multihead_release(uint32_t address);

extern "C" int32_t multihead_attention();

// Runs a prepared operation; an address of 0 means "not given". Embind's conversion of six integers
// would take longer than the rest of a call.
extern "C" int32_t multihead_run(int32_t handle, uint32_t q, uint32_t k, uint32_t v, uint32_t out,
                                 uint32_t lse);

// Runs a prepared backward; an address of 0 means "not given". Missing in the modules of
// multihead/core.
extern "C" int32_t multihead_run_backward(int32_t handle, uint32_t q, uint32_t k, uint32_t v,
                                          uint32_t out, uint32_t lse, uint32_t d_out, uint32_t d_q,
                                          uint32_t d_k, uint32_t d_v);

// Calls Trainer::step(), which returns a TrainingStep, or accumulate(). The block holds a
// TrainingCall. Missing in the modules of multihead/models, which have model_train().
extern "C" int32_t multihead_train(int32_t handle, bool updates);
extern "C" double multihead_trainer_bytes(int32_t handle);

// Calls Experiment::step(), which returns a TrainingStep.
extern "C" int32_t multihead_experiment_step(int32_t handle);

}  // namespace multihead::bindings
