// Runs calls of the core: their status, and the memory that reporting an error takes.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "arguments.h"
#include "engine/runtime/team.h"
#include "handles.h"
#include "multihead/multihead.h"

namespace multihead::bindings {

// What a call comes to: multihead::StatusCode, and what the bindings refuse without a Status.
enum class CallStatus : uint8_t {
  kOk,
  kShape,
  kOption,
  kMemory,
  kFormat,
  kNothingLeft,     // no memory to start the call with
  kOtherArguments,  // another number of them was written than the call reads
};
static_assert(static_cast<int>(CallStatus::kOk) == static_cast<int>(StatusCode::kOk));
static_assert(static_cast<int>(CallStatus::kShape) == static_cast<int>(StatusCode::kShape));
static_assert(static_cast<int>(CallStatus::kOption) == static_cast<int>(StatusCode::kOption));
static_assert(static_cast<int>(CallStatus::kMemory) == static_cast<int>(StatusCode::kMemory));
static_assert(static_cast<int>(CallStatus::kFormat) == static_cast<int>(StatusCode::kFormat));

// Calls of JavaScript have one thread.
Context& context();

// The last status that was not ok.
inline Status last_status;

// Frees the last error, which may lie in the reserve, and renews the reserve. False where there is
// no memory for it.
bool has_reserve();

// Runs a call, and gives its CallStatus.
template <class Work>
int32_t run(Work work) {
  if (!has_reserve()) return static_cast<int32_t>(CallStatus::kNothingLeft);
  last_status = work();
  return static_cast<int32_t>(last_status.code());
}

// Runs a call whose arguments have been read. The length of what was written is checked here.
template <class Work>
int32_t run(const Arguments& from, Work work) {
  return from.complete() ? run(std::move(work)) : static_cast<int32_t>(CallStatus::kOtherArguments);
}

// Runs work that changes an object alike in all members of a team, once each of them has come here:
// either all of them do it or none does.
template <class Work>
Status agreed(Work work) {
  if (engine::Team* const team = engine::team_of(context()); team != nullptr) {
    if (Status status = team->agree(); !status.ok()) return status;
  }
  return work();
}

// Makes an object, which `work` fills. Gives a handle of it, or minus a CallStatus.
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
