// Runs calls of the core: status codes, and the memory reserve for error reports.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "arguments.h"
#include "engine/runtime/team.h"
#include "handles.h"
#include "multihead/multihead.h"

namespace multihead::bindings {

// Result of a call: a multihead::StatusCode, or an error of the bindings that has no Status.
enum class CallStatus : uint8_t {
  kOk,
  kShape,
  kOption,
  kMemory,
  kFormat,
  kNothingLeft,     // not enough memory to start the call
  kOtherArguments,  // the number of arguments written differs from the number read
};
static_assert(static_cast<int>(CallStatus::kOk) == static_cast<int>(StatusCode::kOk));
static_assert(static_cast<int>(CallStatus::kShape) == static_cast<int>(StatusCode::kShape));
static_assert(static_cast<int>(CallStatus::kOption) == static_cast<int>(StatusCode::kOption));
static_assert(static_cast<int>(CallStatus::kMemory) == static_cast<int>(StatusCode::kMemory));
static_assert(static_cast<int>(CallStatus::kFormat) == static_cast<int>(StatusCode::kFormat));

// The context of all calls from JavaScript; single-threaded.
Context& context();

// The last status that was not ok.
inline Status last_status;

// Frees the last error, which may lie in the reserve, and renews the reserve. False if there is no
// memory for the reserve.
bool has_reserve();

// Takes the captures that were pushed for this call.
std::vector<ScoreCapture> pushed_captures();

// Runs a call, and returns its CallStatus.
template <class Work>
int32_t run(Work work) {
  if (!has_reserve()) return static_cast<int32_t>(CallStatus::kNothingLeft);
  last_status = work();
  return static_cast<int32_t>(last_status.code());
}

// Runs a call whose arguments have been read, if their number equals the number written.
template <class Work>
int32_t run(const Arguments& from, Work work) {
  return from.complete() ? run(std::move(work)) : static_cast<int32_t>(CallStatus::kOtherArguments);
}

// Runs work that changes an object in the same way in all members of a team. Waits until every
// member has arrived, so that either all of them do the work or none does.
template <class Work>
Status agreed(Work work) {
  if (engine::Team* const team = engine::team_of(context()); team != nullptr) {
    if (Status status = team->agree(); !status.ok()) return status;
  }
  return work();
}

// Makes an object, which `work` initializes. Returns a handle, or a negated CallStatus.
template <class Object, class Work>
int32_t make(const Arguments& from, Work work) {
  std::unique_ptr<Object> object;
  const int32_t status = run(from, [&] {
    object = std::make_unique<Object>();
    return work(*object);
  });
  return status == 0 ? handles.add(object.release()) : -status;
}

// Makes an object from its config.
template <class Object, class Call>
int32_t create() {
  const Call call;
  return make<Object>(call.from,
                      [&](Object& object) { return Object::create(call.config, object); });
}

}  // namespace multihead::bindings
