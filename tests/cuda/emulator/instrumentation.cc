// The functions that code compiled with -fsanitize=thread calls for each memory access. Here they
// check the accesses of device code; ThreadSanitizer itself is not linked.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "cuda/emulator/block.h"
#include "cuda/emulator/memory.h"

using multihead::cuda::emulator::Access;
using multihead::cuda::emulator::Block;
using multihead::cuda::emulator::block;
using multihead::cuda::emulator::checks_accesses;
using multihead::cuda::emulator::InsideEmulator;

namespace {

void check(const void* address, size_t bytes, Access access) {
  if (!checks_accesses || block().is_local(address, bytes)) return;
  const InsideEmulator inside;
  Block& now = block();
  now.access(address, bytes, access, now.thread());
}

// Ends the block if the address is not aligned.
template <size_t kBytes>
void check_aligned(const void* address, Access access) {
  if (!checks_accesses) return;
  // Limit the required alignment to 8 bytes: compilers merge two 8-byte accesses into one of 16
  // bytes, which nvcc would not do.
  constexpr size_t kAlignment = std::min(kBytes, size_t{8});
  if (reinterpret_cast<uintptr_t>(address) % kAlignment != 0) {
    const InsideEmulator inside;
    block().fail("accesses " + std::to_string(kBytes) + " bytes at an address that is not aligned");
  }
  check(address, kBytes, access);
}

}  // namespace

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

void __tsan_read1(void* a) { check(a, 1, Access::kRead); }
void __tsan_read2(void* a) { check_aligned<2>(a, Access::kRead); }
void __tsan_read4(void* a) { check_aligned<4>(a, Access::kRead); }
void __tsan_read8(void* a) { check_aligned<8>(a, Access::kRead); }
void __tsan_read16(void* a) { check_aligned<16>(a, Access::kRead); }
void __tsan_write1(void* a) { check(a, 1, Access::kWrite); }
void __tsan_write2(void* a) { check_aligned<2>(a, Access::kWrite); }
void __tsan_write4(void* a) { check_aligned<4>(a, Access::kWrite); }
void __tsan_write8(void* a) { check_aligned<8>(a, Access::kWrite); }
void __tsan_write16(void* a) { check_aligned<16>(a, Access::kWrite); }
void __tsan_unaligned_read2(void* a) { check(a, 2, Access::kRead); }
void __tsan_unaligned_read4(void* a) { check(a, 4, Access::kRead); }
void __tsan_unaligned_read8(void* a) { check(a, 8, Access::kRead); }
void __tsan_unaligned_read16(void* a) { check(a, 16, Access::kRead); }
void __tsan_unaligned_write2(void* a) { check(a, 2, Access::kWrite); }
void __tsan_unaligned_write4(void* a) { check(a, 4, Access::kWrite); }
void __tsan_unaligned_write8(void* a) { check(a, 8, Access::kWrite); }
void __tsan_unaligned_write16(void* a) { check(a, 16, Access::kWrite); }
void __tsan_read_range(void* a, size_t bytes) { check(a, bytes, Access::kRead); }
void __tsan_write_range(void* a, size_t bytes) { check(a, bytes, Access::kWrite); }
void* __tsan_memcpy(void* to, const void* from, size_t bytes) {
  check(from, bytes, Access::kRead);
  check(to, bytes, Access::kWrite);
  return std::memcpy(to, from, bytes);
}
void* __tsan_memmove(void* to, const void* from, size_t bytes) {
  check(from, bytes, Access::kRead);
  check(to, bytes, Access::kWrite);
  return std::memmove(to, from, bytes);
}
void* __tsan_memset(void* to, int value, size_t bytes) {
  check(to, bytes, Access::kWrite);
  return std::memset(to, value, bytes);
}

}  // extern "C"
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
