// The emulated mbarriers, TMA copies and wgmma products. They are in one file because they share
// the state of a block.
#include "cuda/device/hopper_device.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/emulator/block.h"
#include "cuda/emulator/clock.h"
#include "cuda/emulator/memory.h"
#include "multihead/tensor.h"
#include "rules/element.h"

namespace multihead::cuda {

using emulator::Access;
using emulator::Block;
using emulator::block;
using emulator::Clock;
using emulator::InsideEmulator;

namespace {

constexpr int kLanes = 32;
// A signaling NaN pattern that no kernel computes.
constexpr uint32_t kPoison = 0x7FA5'5A5AU;

struct Mbarrier {
  uint32_t arrivals = 0;  // expected per phase
  uint32_t arrived = 0;
  int64_t bytes = 0;  // expected and not yet copied
  uint64_t phase = 0;
  Clock next, ended;  // clocks of the current and of the last phase
};

// The 64 x N sums of one wgmma, as far as one warp has them: 16 rows, in the registers of its
// lanes.
struct Accumulator {
  std::array<float*, kLanes> d{};
  int columns = 0;
  std::vector<float> sums;  // 16 x columns
  int pending = 0;          // products not yet waited for
};

struct Product {
  std::shared_ptr<Accumulator> to;
  std::array<const uint32_t*, kLanes> registers{};  // registers of a; null: a has a descriptor
  std::array<std::array<uint32_t, 4>, kLanes> values{};
  uint64_t a = 0, b = 0;
  DType type = DType::kBF16;
  bool transposed_b = false, add = false;
  uint64_t group = 0;
};

struct WarpState {
  std::deque<Product> products;
  uint64_t group = 0;  // group of the next product
};

struct ThreadState {
  bool fenced = false;      // wgmma_fence() was called since the last wgmma_wait()
  uint32_t proxy_time = 0;  // writes up to this time are visible to the asynchronous proxy
};

struct State {
  uint64_t launch = 0, number = 0;
  std::vector<Mbarrier> barriers;
  std::vector<WarpState> warps;
  std::vector<ThreadState> threads;
};

// Reports products that no thread waited for: their sums may have any value.
void report_products_under_way(const State& of_block) {
  for (size_t warp = 0; warp < of_block.warps.size(); ++warp) {
    if (of_block.warps[warp].products.empty()) continue;
    block().report("ends before wgmma_wait() for its last product",
                   static_cast<int>(warp) * kLanes);
  }
}

// State of the running block.
State& state() {
  static State the_state;
  Block& now = block();
  if (the_state.launch != now.launch() || the_state.number != now.number()) {
    the_state = State();
    the_state.launch = now.launch();
    the_state.number = now.number();
    the_state.warps.resize(static_cast<size_t>(now.threads() / kLanes));
    the_state.threads.resize(static_cast<size_t>(now.threads()));
    now.at_end([] { report_products_under_way(the_state); });
  }
  return the_state;
}

ThreadState& this_thread() { return state().threads[static_cast<size_t>(block().thread())]; }

// The 8 bytes of an initialized barrier hold this number plus the barrier's index.
constexpr uint64_t kMbarrier = 0x6D62'6172'0000'0000U;

Mbarrier& barrier_at(uint64_t* address) {
  Block& now = block();
  now.access(address, sizeof(*address), Access::kRead, now.thread());
  const uint64_t index = *address - kMbarrier;
  if (index >= state().barriers.size()) now.fail("uses a barrier that is not initialized");
  return state().barriers[index];
}

void end_phase_if_complete(Mbarrier& barrier) {
  if (barrier.arrived < barrier.arrivals || barrier.bytes != 0) return;
  ++barrier.phase;
  barrier.arrived = 0;
  barrier.ended = std::move(barrier.next);
  barrier.next = Clock();
}

void arrive(uint64_t* address, int64_t bytes) {
  Mbarrier& barrier = barrier_at(address);
  Block& now = block();
  if (barrier.arrived == barrier.arrivals) {
    now.fail("arrives at a barrier whose phase has all arrivals");
  }
  now.release(barrier.next, now.thread());
  barrier.bytes += bytes;
  ++barrier.arrived;
  end_phase_if_complete(barrier);
}

// The address in shared memory, as in descriptors and copies.
uint64_t offset_of(const void* shared) {
  return static_cast<uint64_t>(static_cast<const std::byte*>(shared) - block().shared());
}

// The 128-byte swizzle: XORs address bits 4 to 6 with bits 7 to 9.
constexpr uint64_t swizzled(uint64_t offset) { return offset ^ ((offset >> 7U & 7U) << 4U); }

float number_at(uint16_t bits, DType type) {
  return type == DType::kF16 ? rules::to_float(Float16{bits}) : rules::to_float(BFloat16{bits});
}

struct Descriptor {
  uint64_t address, block_bytes, group_bytes;

  explicit Descriptor(uint64_t bits)
      : address((bits & 0x3FFFU) << 4U),
        block_bytes((bits >> 16U & 0x3FFFU) << 4U),
        group_bytes((bits >> 32U & 0x3FFFU) << 4U) {
    if (bits >> 62U != 1 || (bits >> 49U & 7U) != 0) {
      block().fail("gives a matrix descriptor without the swizzle of 128 bytes");
    }
  }
};

// Calls visit(row, column, offset) for each chunk of eight numbers in a slice of `rows` rows and 16
// columns, transposed if requested. `offset`: of the chunk in shared memory.
template <class Visit>
void for_each_piece(const Descriptor& at, size_t rows, bool transposed, const Visit& visit) {
  if (!transposed) {
    for (size_t row = 0; row < rows; ++row) {
      for (size_t column = 0; column < 16; column += 8) {
        visit(row, column,
              swizzled(at.address + row / 8 * at.group_bytes + row % 8 * 128 + column * 2));
      }
    }
    return;
  }
  for (size_t column = 0; column < 16; ++column) {  // each column is a row in memory
    for (size_t row = 0; row < rows; row += 8) {
      visit(row, column,
            swizzled(at.address + column / 8 * at.group_bytes + column % 8 * 128 +
                     row / 64 * at.block_bytes + row % 64 * 2));
    }
  }
}

// Reads `rows` x 16 numbers into `to`. If `to` is null, only checks the reads.
void read_operand(const Descriptor& at, size_t rows, bool transposed, DType type, float* to,
                  int thread) {
  Block& now = block();
  for_each_piece(at, rows, transposed, [&](size_t row, size_t column, uint64_t offset) {
    const std::byte* const piece = now.shared() + offset;
    now.access(piece, 16, Access::kRead, thread);
    if (to == nullptr) {
      int writer = 0;
      uint32_t time = 0;
      if (now.last_write(piece, writer, time) && writer < now.threads() &&
          time > state().threads[static_cast<size_t>(writer)].proxy_time) {
        now.report("multiplies shared memory at byte " + std::to_string(offset) +
                       ", which thread " + std::to_string(writer) +
                       " wrote without fence_proxy_async()",
                   thread);
      }
      return;
    }
    std::array<uint16_t, 8> bits{};
    std::memcpy(bits.data(), piece, sizeof(bits));
    for (size_t i = 0; i < bits.size(); ++i) {
      const size_t r = transposed ? row + i : row, c = transposed ? column : column + i;
      to[r * 16 + c] = number_at(bits[i], type);
    }
  });
}

// The warp's 16 rows of the 64 rows of a.
Descriptor rows_of_warp(uint64_t a, int thread) {
  Descriptor at(a);
  at.address += static_cast<uint64_t>(thread / kLanes % 4) * 2 * at.group_bytes;
  return at;
}

// Index in Accumulator::sums of element i of a lane's d.
size_t sum_index(size_t lane, size_t i, size_t columns) {
  const size_t row = lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
  return row * columns + column;
}

void copy_sums(Accumulator& sums, bool to_registers) {
  const auto columns = static_cast<size_t>(sums.columns);
  for (size_t lane = 0; lane < kLanes; ++lane) {
    for (size_t i = 0; i < columns / 2; ++i) {
      float& d = sums.d[lane][i];
      float& sum = sums.sums[sum_index(lane, i, columns)];
      (to_registers ? d : sum) = to_registers ? sum : d;
    }
  }
}

void poison(const Accumulator& sums) {
  for (float* const d : sums.d) {
    std::fill(d, d + sums.columns / 2, std::bit_cast<float>(kPoison));
  }
}

void check_poison(const Accumulator& sums, int first) {
  for (size_t lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < sums.columns / 2; ++i) {
      if (std::bit_cast<uint32_t>(sums.d[lane][i]) == kPoison) continue;
      block().report("wrote d[" + std::to_string(i) + "] of a product before wgmma_wait()",
                     first + static_cast<int>(lane));
      return;
    }
  }
}

void execute(Product& product, int first) {
  Accumulator& to = *product.to;
  const auto columns = static_cast<size_t>(to.columns);
  std::vector<float> a(16 * 16), b(columns * 16);
  if (product.registers[0] == nullptr) {
    read_operand(rows_of_warp(product.a, first), 16, false, product.type, a.data(), first);
  } else {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      for (size_t i = 0; i < 4; ++i) {
        const uint32_t pair = product.values[lane][i];
        if (pair != product.registers[lane][i]) {
          block().report("changed the registers of a product before wgmma_wait()",
                         first + static_cast<int>(lane));
        }
        const size_t at = (lane / 4 + i % 2 * 8) * 16 + lane % 4 * 2 + i / 2 * 8;
        a[at] = number_at(static_cast<uint16_t>(pair), product.type);
        a[at + 1] = number_at(static_cast<uint16_t>(pair >> 16U), product.type);
      }
    }
  }
  read_operand(Descriptor(product.b), columns, product.transposed_b, product.type, b.data(), first);
  for (size_t row = 0; row < 16; ++row) {
    for (size_t column = 0; column < columns; ++column) {
      float sum = product.add ? to.sums[row * columns + column] : 0.0F;
      for (size_t k = 0; k < 16; ++k) sum += a[row * 16 + k] * b[column * 16 + k];
      to.sums[row * columns + column] = sum;
    }
  }
}

struct ProductCall {
  float* d;
  int columns;
  DType type;
  emulator::Operand a;
  uint64_t b;
  bool transposed_b, add;
};

void enqueue(Block& now, const Block::Lanes& lanes) {
  const int first = now.thread() - now.thread() % kLanes;
  WarpState& warp = state().warps[static_cast<size_t>(first / kLanes)];
  const auto& call = *static_cast<ProductCall*>(lanes[0]);
  Product product;
  product.a = call.a.descriptor;
  product.b = call.b;
  product.type = call.type;
  product.transposed_b = call.transposed_b;
  product.add = call.add;
  product.group = warp.group;
  for (const Product& other : warp.products) {
    if (other.to->d[0] == call.d) product.to = other.to;
  }
  const bool is_new = product.to == nullptr;
  if (is_new) {
    product.to = std::make_shared<Accumulator>();
    product.to->columns = call.columns;
    product.to->sums.resize(static_cast<size_t>(16 * call.columns));
  }
  for (size_t lane = 0; lane < kLanes; ++lane) {
    const auto& other = *static_cast<ProductCall*>(lanes[lane]);
    if (other.b != call.b || other.a.descriptor != call.a.descriptor || other.add != call.add ||
        other.columns != call.columns) {
      return now.fail("gives a product other operands than the other lanes of its warp");
    }
    if (!state().threads[static_cast<size_t>(first) + lane].fenced) {
      now.report("starts a product without wgmma_fence()", first + static_cast<int>(lane));
    }
    product.to->d[lane] = other.d;
    product.registers[lane] = other.a.registers;
    if (other.a.registers != nullptr) {
      std::copy_n(other.a.registers, 4, product.values[lane].begin());
    }
  }
  // The product may read its operands from now on: check that barriers order these reads after the
  // copies.
  if (call.a.registers == nullptr) {
    read_operand(rows_of_warp(product.a, first), 16, false, product.type, nullptr, first);
  }
  read_operand(Descriptor(product.b), static_cast<size_t>(call.columns), product.transposed_b,
               product.type, nullptr, first);
  if (is_new) {
    copy_sums(*product.to, false);
    poison(*product.to);
  }
  ++product.to->pending;
  warp.products.push_back(std::move(product));
}

void wait_for_groups(Block& now, const Block::Lanes& lanes) {
  const int first = now.thread() - now.thread() % kLanes;
  WarpState& warp = state().warps[static_cast<size_t>(first / kLanes)];
  const auto pending = static_cast<uint64_t>(*static_cast<int*>(lanes[0]));
  while (!warp.products.empty() && warp.products.front().group + pending < warp.group) {
    Product product = std::move(warp.products.front());
    warp.products.pop_front();
    execute(product, first);
    if (--product.to->pending > 0) continue;
    check_poison(*product.to, first);
    copy_sums(*product.to, true);
  }
}

}  // namespace

int encode_tensor_map(TensorMap& map, const TensorMapShape& shape) {
  constexpr int kInvalidValue = 1;
  constexpr uint64_t kMostBytes = uint64_t{1} << 40U;
  bool valid = reinterpret_cast<uintptr_t>(shape.data) % 16 == 0 && shape.data != nullptr;
  for (const uint64_t extent : shape.extents) valid &= extent > 0 && extent <= uint64_t{1} << 32U;
  for (const uint64_t stride : shape.byte_strides) {
    valid &= stride % 16 == 0 && stride > 0 && stride < kMostBytes;
  }
  for (const uint32_t box : shape.box) valid &= box > 0 && box <= 256;
  valid &= shape.box[0] * 2 <= 128;  // width of the swizzle in bytes
  if (!valid) return kInvalidValue;
  map.shape = shape;
  return 0;
}

void mbarrier_init(uint64_t* barrier, uint32_t arrivals) {
  const InsideEmulator inside;
  Block& now = block();
  now.access(barrier, sizeof(*barrier), Access::kWrite, now.thread());
  *barrier = kMbarrier + state().barriers.size();
  state().barriers.emplace_back();
  state().barriers.back().arrivals = arrivals;
}

void mbarrier_init_fence() {}

void mbarrier_arrive(uint64_t* barrier) {
  const InsideEmulator inside;
  arrive(barrier, 0);
}

void mbarrier_arrive_expect(uint64_t* barrier, uint32_t bytes) {
  const InsideEmulator inside;
  arrive(barrier, bytes);
}

void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
  const InsideEmulator inside;
  const auto index = static_cast<size_t>(&barrier_at(barrier) - state().barriers.data());
  Block& now = block();
  now.wait("the barrier at shared byte " + std::to_string(offset_of(barrier)) + ", parity " +
               std::to_string(parity),
           [index, parity] { return state().barriers[index].phase % 2 != parity; });
  now.acquire(state().barriers[index].ended, now.thread());
}

void tma_load_4d(void* shared, const TensorMap* map, uint64_t* barrier, int c0, int c1, int c2,
                 int c3) {
  const InsideEmulator inside;
  Block& now = block();
  const auto index = static_cast<size_t>(&barrier_at(barrier) - state().barriers.data());
  const TensorMapShape shape = map->shape;
  const uint64_t to = offset_of(shared);
  const uint64_t row_bytes = uint64_t{shape.box[0]} * 2;
  const uint64_t bytes = row_bytes * shape.box[1] * shape.box[2] * shape.box[3];
  if (row_bytes != 128 || to % 1024 != 0 || to + bytes > now.shared_bytes()) {
    return now.fail("copies a box to shared byte " + std::to_string(to) +
                    ", which is not aligned to 1024 bytes or not large enough");
  }
  // The copy may write from now on. It is ordered after all accesses that are ordered before this
  // call.
  Clock before;
  now.release(before, now.thread());
  const int engine = now.async_actor();
  const uint32_t time = now.clock(engine).of(engine) + 1;
  now.clock(engine) = Clock(now.threads() + 1);
  now.clock(engine).join(before);
  now.clock(engine).set(engine, time);
  now.access(now.shared() + to, bytes, Access::kWrite, engine);
  now.set_in_flight(now.shared() + to, bytes, true);
  const Clock known = now.clock(engine);
  now.on_idle([=] {
    Block& later = block();
    later.set_in_flight(later.shared() + to, bytes, false);
    uint64_t row = 0;
    for (uint32_t i3 = 0; i3 < shape.box[3]; ++i3) {
      for (uint32_t i2 = 0; i2 < shape.box[2]; ++i2) {
        for (uint32_t i1 = 0; i1 < shape.box[1]; ++i1, ++row) {
          const std::array<int64_t, 4> at{c0, int64_t{c1} + i1, int64_t{c2} + i2, int64_t{c3} + i3};
          std::array<std::byte, 128> values{};
          bool inside_tensor = true;
          for (size_t axis = 0; axis < 4; ++axis) {
            inside_tensor &= at[axis] >= 0 && at[axis] < static_cast<int64_t>(shape.extents[axis]);
          }
          if (inside_tensor) {
            const uint64_t count =
                std::min<uint64_t>(shape.box[0], shape.extents[0] - static_cast<uint64_t>(at[0]));
            const auto* const from = static_cast<const std::byte*>(shape.data) + at[0] * 2 +
                                     at[1] * static_cast<int64_t>(shape.byte_strides[0]) +
                                     at[2] * static_cast<int64_t>(shape.byte_strides[1]) +
                                     at[3] * static_cast<int64_t>(shape.byte_strides[2]);
            later.access(from, count * 2, Access::kRead, later.async_actor());
            std::copy_n(from, count * 2, values.begin());
          }
          for (uint64_t piece = 0; piece < 8; ++piece) {
            std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(piece * 16), 16,
                        later.shared() + swizzled(to + row * 128 + piece * 16));
          }
        }
      }
    }
    Mbarrier& full = state().barriers[index];
    full.next.join(known);
    full.bytes -= static_cast<int64_t>(bytes);
    if (full.bytes < 0) {
      later.report("copies more bytes than the barrier expects", later.async_actor());
    }
    end_phase_if_complete(full);
  });
}

void fence_proxy_async() {
  const InsideEmulator inside;
  Block& now = block();
  this_thread().proxy_time = now.clock(now.thread()).of(now.thread());
  Clock unused;
  now.release(unused, now.thread());  // gives later writes a later time
}

uint64_t matrix_descriptor(const void* address, uint32_t block_bytes, uint32_t group_bytes) {
  const InsideEmulator inside;
  const auto field = [](uint64_t bytes) { return (bytes & 0x3FFFFU) >> 4U; };
  return field(offset_of(address)) | field(block_bytes) << 16U | field(group_bytes) << 32U |
         uint64_t{1} << 62U;
}

void wgmma_fence() {
  const InsideEmulator inside;
  this_thread().fenced = true;
}

void wgmma_commit() {
  const InsideEmulator inside;
  block().with_warp("wgmma_commit", nullptr, [](Block& now, const Block::Lanes&) {
    ++state().warps[static_cast<size_t>(now.thread() / kLanes)].group;
  });
}

namespace emulator {

void set_max_registers(int registers) {
  const InsideEmulator inside;
  block().with_warp("set_max_registers", &registers, [](Block&, const Block::Lanes&) {});
}

void wgmma(float* d, int columns, DType type, const Operand& a, uint64_t b, bool transposed_b,
           bool add) {
  const InsideEmulator inside;
  ProductCall call{d, columns, type, a, b, transposed_b, add};
  block().with_warp("wgmma", &call, enqueue);
}

void wgmma_wait(int pending) {
  const InsideEmulator inside;
  block().with_warp("wgmma_wait", &pending, wait_for_groups);
  this_thread().fenced = false;
}

}  // namespace emulator
}  // namespace multihead::cuda
