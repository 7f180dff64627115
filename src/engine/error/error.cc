#include "engine/error/error.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <string_view>

#include "engine/error/printable.h"

namespace multihead {
namespace {

using engine::kMostPartCharacters;
using engine::printable;

// Returns null if memory is exhausted.
Status::Record* make_record(StatusCode code, Name argument, Message message) {
  auto* const record = new (std::nothrow) Status::Record();
  if (record == nullptr) return nullptr;
  record->code = code;
  record->argument = argument;
  record->message = message;
  return record;
}

// Records for kMemory in static memory, because such an error may find no memory to allocate.
struct MemoryRecords {
  Status::Record unknown;  // has no number; may be shared by many errors
  Status::Record spare;    // has a number; for one error at a time, free while its `uses` is 0
};

MemoryRecords& memory_records() noexcept {
  // Never destroyed: an error may outlive main().
  alignas(MemoryRecords) static std::byte memory[sizeof(MemoryRecords)];
  static MemoryRecords& records = [&]() -> MemoryRecords& {
    auto* const made = new (memory) MemoryRecords();
    for (Status::Record* record : {&made->unknown, &made->spare}) {
      record->code = StatusCode::kMemory;
      record->argument = Name::kMemory;
    }
    made->unknown.message = Message::kMemoryUnknown;
    made->spare.message = Message::kMemory;
    made->spare.uses = 0;
    return *made;
  }();
  return records;
}

Status without_memory() noexcept {
  Status::Record& record = memory_records().unknown;
  record.uses.fetch_add(1, std::memory_order_relaxed);
  return Status(&record);
}

template <class Fill>
Status error(StatusCode code, Name argument, Message message, Fill fill) {
  Status::Record* const record = make_record(code, argument, message);
  if (record == nullptr) return without_memory();
  Status status(record);
  fill(*record);
  return status;
}

}  // namespace

Status::Status(StatusCode code, std::string_view argument, std::string_view expected,
               std::string_view got)
    : Status(error(code, Name::kNone, Message::kWords, [&](Record& record) {
        record.own_argument = printable(argument, kMostPartCharacters);
        record.own_expected = printable(expected, kMostPartCharacters);
        record.text = printable(got, kMostPartCharacters);
      })) {}

Status Status::out_of_memory(uint64_t bytes) noexcept {
  if (bytes == 0) return without_memory();
  Record& spare = memory_records().spare;
  if (uint32_t free = 0; spare.uses.compare_exchange_strong(free, 1)) {
    spare.numbers[0] = static_cast<int64_t>(bytes);
    return Status(&spare);
  }
  return error(StatusCode::kMemory, Name::kMemory, Message::kMemory,
               [&](Record& record) { record.numbers[0] = static_cast<int64_t>(bytes); });
}

StatusCode Status::code() const noexcept {
  return record_ == nullptr ? StatusCode::kOk : record_->code;
}

void Status::share() const noexcept { record_->uses.fetch_add(1, std::memory_order_relaxed); }

void Status::release() noexcept {
  const bool spare = record_->code == StatusCode::kMemory && record_ == &memory_records().spare;
  if (record_->uses.fetch_sub(1, std::memory_order_acq_rel) == 1 && !spare) delete record_;
}

namespace engine {

Status option_error(Name argument, Message message, int64_t first, int64_t second, int64_t third,
                    int64_t fourth) {
  return error(StatusCode::kOption, argument, message, [&](Status::Record& record) {
    record.numbers = {first, second, third, fourth};
  });
}

Status real_error(Name argument, Message message, double real, int64_t first) {
  return error(StatusCode::kOption, argument, message, [&](Status::Record& record) {
    record.real = real;
    record.numbers[0] = first;
  });
}

Status shape_error(Name argument, Message message, int64_t first, int64_t second, int64_t third) {
  return error(StatusCode::kShape, argument, message, [&](Status::Record& record) {
    record.numbers = {first, second, third};
  });
}

Status shape_error(Name argument, Message message, const Dims& given, int64_t first,
                   int64_t second) {
  return shape_error(argument, message, Axes::kNone, {}, given, first, second);
}

Status shape_error(Name argument, Message message, Axes axes, const Dims& shape, const Dims& given,
                   int64_t first, int64_t second, int64_t third) {
  return error(StatusCode::kShape, argument, message, [&](Status::Record& record) {
    record.axes = axes;
    record.shape = shape;
    record.given = given;
    record.numbers = {first, second, third};
  });
}

Status text_error(StatusCode code, Name argument, Message message, std::string_view text,
                  int64_t first) {
  return error(code, argument, message, [&](Status::Record& record) {
    record.text = printable(text, kMostPartCharacters);
    record.numbers[0] = first;
  });
}

Status renamed(const Status& status, Name from, Name to) {
  const Status::Record* const of = status.record();
  if (of == nullptr || of->argument != from) return status;
  return error(of->code, to, of->message, [&](Status::Record& record) {
    record.axes = of->axes;
    record.numbers = of->numbers;
    record.real = of->real;
    record.shape = of->shape;
    record.given = of->given;
    record.text = of->text;
  });
}

}  // namespace engine
}  // namespace multihead
