#include "cuda/emulator/block.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <boost/context/fiber.hpp>
#include <boost/context/preallocated.hpp>
#include <boost/context/stack_context.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

// The linker's symbols for the first byte of the program and the end of its static data.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" char __executable_start;
extern "C" char end;
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

namespace multihead::cuda::emulator {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kSharedAlignment = 1024;
constexpr int kLanes = 32;
// Fills shared memory at the start of a block: NaN in every floating-point type.
constexpr std::byte kPoison{0xFF};

// Does not free the fiber's stack, which belongs to its block.
struct KeepStack {
  static void deallocate(boost::context::stack_context& /*stack*/) {}
};

std::string triple(const std::array<uint32_t, 3>& index) {
  return "(" + std::to_string(index[0]) + ", " + std::to_string(index[1]) + ", " +
         std::to_string(index[2]) + ")";
}

const char* name_of(Access access) { return access == Access::kRead ? "reads" : "writes"; }

}  // namespace

Block::Block(int threads) : threads_(threads), warps_(static_cast<size_t>(threads / kLanes)) {
  void* const stacks = mmap(nullptr, static_cast<size_t>(threads) * kStack, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stacks == MAP_FAILED) {
    std::perror("The emulator has no memory for stacks");
    std::abort();
  }
  stacks_ = static_cast<std::byte*>(stacks);
  for (int t = 0; t < threads; ++t) {
    fibers_.push_back(std::make_unique<Thread>());
    start(t);
  }
}

void Block::bind(size_t shared_bytes, const KernelCall& call) {
  call_ = call;
  if (shared_bytes_ == shared_bytes && shared_ != nullptr) return;
  // Allocate exactly this size, so that accesses beyond it are found.
  shared_bytes_ = shared_bytes;
  shared_memory_ = std::make_unique<std::byte[]>(shared_bytes + kSharedAlignment);
  const auto address = reinterpret_cast<uintptr_t>(shared_memory_.get());
  shared_ = shared_memory_.get() + (kSharedAlignment - address % kSharedAlignment);
}

void Block::start(int thread) {
  std::byte* const base = stacks_ + static_cast<size_t>(thread) * kStack;
  mprotect(base, kPage, PROT_NONE);
  boost::context::stack_context stack;
  stack.size = kStack - kPage;
  stack.sp = base + kStack;
  fibers_[static_cast<size_t>(thread)]->fiber = boost::context::fiber(
      std::allocator_arg, boost::context::preallocated(stack.sp, stack.size, stack), KeepStack(),
      [this, thread](boost::context::fiber&& scheduler) {
        scheduler_ = std::move(scheduler);
        Thread& self = *fibers_[static_cast<size_t>(thread)];
        while (true) {
          checks_accesses = true;
          call_.run(call_.data);
          checks_accesses = false;
          self.state = State::kEnded;
          --running_;
          scheduler_ = std::move(scheduler_).resume();
        }
        return std::move(scheduler_);
      });
}

bool Block::run(const GridPlace& place, uint64_t launch) {
  place_ = place;
  launch_ = launch;
  block_ =
      (uint64_t{place.block[2]} * place.grid[1] + place.block[1]) * place.grid[0] + place.block[0];
  random_.seed(device().seed() * 0x9E3779B97F4A7C15U + launch * 0xD1B54A32D192ED03U + block_);
  std::fill(shared_, shared_ + shared_bytes_, kPoison);
  shared_shadow_.reset(shared_bytes_, false);
  clocks_.assign(static_cast<size_t>(threads_) + 1, Clock(threads_ + 1));
  for (int actor = 0; actor <= threads_; ++actor) clock(actor).set(actor, 1);
  barriers_ = {};
  ordered_.clear();
  std::fill(warps_.begin(), warps_.end(), Warp());
  events_.clear();
  checks_.clear();
  waiters_.clear();
  ready_.resize(static_cast<size_t>(threads_));
  std::iota(ready_.begin(), ready_.end(), 0);
  for (const std::unique_ptr<Thread>& thread : fibers_) {
    thread->state = State::kReady;
    thread->has_waited = false;
    thread->copies.clear();
    thread->groups.clear();
  }
  running_ = threads_;
  ended_ = false;
  the_block = this;
  while (running_ > 0 && !ended_) {
    if (ready_.empty() && !wake_waiters() && !run_event()) {
      report_deadlock();
      break;
    }
    if (ready_.empty()) continue;
    const size_t choice = random_() % ready_.size();
    current_ = ready_[choice];
    ready_[choice] = ready_.back();
    ready_.pop_back();
    Thread& thread = *fibers_[static_cast<size_t>(current_)];
    thread.fiber = std::move(thread.fiber).resume();
  }
  while (!ended_ && run_event()) {
  }
  if (!ended_) {
    for (const std::function<void()>& check : checks_) check();
  }
  the_block = nullptr;
  return running_ == 0;
}

void Block::suspend(const char* what) {
  Thread& thread = *fibers_[static_cast<size_t>(current_)];
  const int self = current_;
  thread.state = State::kWaiting;
  thread.waits_for = what;
  scheduler_ = std::move(scheduler_).resume();
  current_ = self;
}

void Block::wake(int thread) {
  fibers_[static_cast<size_t>(thread)]->state = State::kReady;
  ready_.push_back(thread);
}

void Block::wait(std::string what, std::function<bool()> ready) {
  if (ready()) return;
  waiters_.push_back({current_, std::move(what), std::move(ready)});
  suspend("");
}

bool Block::wake_waiters() {
  const size_t before = waiters_.size();
  std::erase_if(waiters_, [&](const Waiter& waiter) {
    if (!waiter.ready()) return false;
    wake(waiter.thread);
    return true;
  });
  return waiters_.size() < before;
}

bool Block::run_event() {
  if (events_.empty()) return false;
  const size_t choice = random_() % events_.size();
  const std::function<void()> event = std::move(events_[choice]);
  events_.erase(events_.begin() + static_cast<std::ptrdiff_t>(choice));
  event();
  return true;
}

void Block::report_deadlock() {
  std::map<std::string, std::vector<int>> waiting;
  for (int t = 0; t < threads_; ++t) {
    const Thread& thread = *fibers_[static_cast<size_t>(t)];
    if (thread.state != State::kWaiting) continue;
    std::string what = thread.waits_for;
    for (const Waiter& waiter : waiters_) {
      if (waiter.thread == t) what = waiter.what;
    }
    waiting[what].push_back(t);
  }
  std::string text = "deadlock:";
  for (const auto& [what, threads] : waiting) {
    text += " " + std::to_string(threads.size()) + " threads (first " +
            std::to_string(threads.front()) + ") wait for " + what + ";";
  }
  report(text + " " + std::to_string(threads_ - running_) + " threads have ended", -1);
  ended_ = true;
}

void Block::release(Clock& object, int actor) {
  Clock& own = clock(actor);
  object.join(own);
  own.set(actor, own.of(actor) + 1);
}

std::string Block::describe(const void* address) const {
  const int64_t offset = shared_offset(address);
  const auto bytes = static_cast<int64_t>(shared_bytes_);
  if (offset >= -bytes && offset < 2 * bytes) return "shared byte " + std::to_string(offset);
  char text[40];
  static_cast<void>(std::snprintf(text, sizeof(text), "address %p", address));
  return text;
}

void Block::report(const std::string& what, int actor) {
  std::string text = what;
  if (actor >= 0 && actor < threads_) text = "thread " + std::to_string(actor) + " " + text;
  if (actor == threads_) text = "the asynchronous engine " + text;
  device().report(text + " [block " + triple(place_.block) + " of " + triple(place_.grid) +
                  ", launch " + std::to_string(launch_) + ", seed " +
                  std::to_string(device().seed()) + "]");
}

void Block::fail(const std::string& what) {
  report(what);
  ended_ = true;
  // This fiber is never resumed.
  suspend("");
}

void Block::access(const void* address, size_t bytes, Access access, int actor) {
  ++emulator::device().accesses;
  const auto* const at = static_cast<const std::byte*>(address);
  Shadow* shadow = nullptr;
  size_t offset = 0;
  if (at >= shared_ && at + bytes <= shared_ + shared_bytes_) {
    shadow = &shared_shadow_;
    offset = static_cast<size_t>(at - shared_);
  } else {
    if (actor == current_ && is_local(address, bytes)) return;
    Device::Region* const region = device().find(address, bytes);
    if (region != nullptr) {
      if (device().waits_first() && actor < threads_ &&
          !fibers_[static_cast<size_t>(actor)]->has_waited) {
        return fail("uses '" + region->name + "' before it waits for the previous kernel");
      }
      if (region->use == Use::kInput) {
        if (access == Access::kRead) return;
        return fail("writes to '" + region->name + "', which is an input");
      }
      shadow = &region->shadow;
      offset = static_cast<size_t>(at - region->begin);
    } else {
      const auto* const call = static_cast<const std::byte*>(call_.data);
      const bool is_parameter = at >= call && at + bytes <= call + call_.bytes;
      const auto* const image = reinterpret_cast<const std::byte*>(&__executable_start);
      const bool is_constant =
          at >= image && at + bytes <= reinterpret_cast<const std::byte*>(&end);
      if (access == Access::kRead && (is_parameter || is_constant)) return;
      return fail(std::string(name_of(access)) + " " + std::to_string(bytes) + " bytes at " +
                  describe(address) + ", outside of shared memory (" +
                  std::to_string(shared_bytes_) + " bytes) and of all tensors");
    }
  }
  const Shadow::Result result =
      shadow->access(offset, bytes, access, actor, clock(actor), launch_, block_, ordered_);
  if (result.fault == Shadow::Fault::kNone) return;
  const Device::Region* const region =
      shadow == &shared_shadow_ ? nullptr : device().find(address, bytes);
  const std::string where = (region == nullptr ? "shared memory" : "'" + region->name + "'") +
                            std::string(" at byte ") + std::to_string(result.byte);
  const std::string does = std::string(name_of(access)) + " " + where;
  switch (result.fault) {
    case Shadow::Fault::kRace:
      return report(does + ", which " +
                        (result.other == threads_ ? "the asynchronous engine"
                                                  : "thread " + std::to_string(result.other)) +
                        (result.other_access == Access::kRead ? " read" : " wrote") +
                        " with no barrier between them",
                    actor);
    case Shadow::Fault::kRaceOfBlocks:
      return report(does + ", which another block of the launch used", actor);
    case Shadow::Fault::kUnwritten:
      return report(does + ", which nothing has written", actor);
    case Shadow::Fault::kInFlight:
      return report(does + " while an asynchronous copy to it is under way", actor);
    case Shadow::Fault::kNone:
      break;
  }
}

void Block::set_in_flight(const void* shared, size_t bytes, bool in_flight) {
  shared_shadow_.set_in_flight(static_cast<size_t>(shared_offset(shared)), bytes, in_flight);
}

bool Block::last_write(const void* shared, int& actor, uint32_t& time) const {
  return shared_shadow_.last_write(static_cast<size_t>(shared_offset(shared)), actor, time);
}

void Block::with_warp(const char* kind, void* argument, void (*together)(Block&, const Lanes&)) {
  const int self = current_;
  Warp& warp = warps_[static_cast<size_t>(self / kLanes)];
  if (warp.arrived == 0) {
    warp.kind = kind;
  } else if (warp.kind != kind && std::strcmp(warp.kind, kind) != 0) {
    return fail("is at " + std::string(kind) + " while other lanes of its warp are at " +
                warp.kind);
  }
  warp.arguments[static_cast<size_t>(self % kLanes)] = argument;
  if (++warp.arrived < kLanes) return suspend(kind);
  warp.arrived = 0;
  const Lanes arguments = warp.arguments;
  together(*this, arguments);
  const int first = self - self % kLanes;
  for (int t = first; t < first + kLanes; ++t) {
    if (t != self) wake(t);
  }
}

void Block::sync_warp() {
  with_warp("sync_warp", nullptr, [](Block& block, const Lanes&) {
    const int first = block.thread() - block.thread() % kLanes;
    Clock all;
    for (int t = first; t < first + kLanes; ++t) block.release(all, t);
    for (int t = first; t < first + kLanes; ++t) block.acquire(all, t);
  });
}

void Block::barrier(int id, int threads, bool waits) {
  Barrier& barrier = barriers_[static_cast<size_t>(id)];
  if (id < 0 || id > 15 || threads % kLanes != 0 || threads <= 0 || threads > threads_) {
    return fail("uses barrier " + std::to_string(id) + " of " + std::to_string(threads) +
                " threads in a block of " + std::to_string(threads_));
  }
  if (barrier.arrived == 0) {
    barrier.threads = threads;
  } else if (barrier.threads != threads) {
    return fail("uses barrier " + std::to_string(id) + " for " + std::to_string(threads) +
                " threads, another thread for " + std::to_string(barrier.threads));
  }
  release(barrier.clock, current_);
  ++barrier.arrived;
  if (barrier.arrived < threads) {
    if (!waits) return;
    barrier.waiting.push_back(current_);
    return suspend(id == 0 ? "sync_threads" : "a named barrier");
  }
  if (waits) acquire(barrier.clock, current_);
  for (const int thread : barrier.waiting) {
    acquire(barrier.clock, thread);
    wake(thread);
  }
  barrier.arrived = 0;
  barrier.clock.clear();
  barrier.waiting.clear();
}

uint64_t& Block::counter(const void* address) {
  const Device::Region* const region = device().find(address, sizeof(uint64_t));
  if (region == nullptr || region->use == Use::kInput ||
      reinterpret_cast<uintptr_t>(address) % sizeof(uint64_t) != 0 ||
      (device().waits_first() && !fibers_[static_cast<size_t>(current_)]->has_waited)) {
    fail("uses a counter at " + describe(address) + " that it may not use");
  }
  return *static_cast<uint64_t*>(const_cast<void*>(address));
}

void Block::meet_blocks(const void* counter) {
  Device::Counter& met = device().counter(counter);
  if (std::exchange(met.launch, launch_) != launch_) met.released.clear();
  release(met.released[block_], current_);
  for (const auto& [other, released] : met.released) {
    ordered_[other] = {released, current_, clock(current_).of(current_)};
  }
}

void Block::copy_async(void* shared, const void* global, int bytes, int valid) {
  const auto aligned = [bytes](const void* address) {
    return reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(bytes) == 0;
  };
  if (!aligned(shared) || (valid > 0 && !aligned(global))) {
    return fail("copies " + std::to_string(bytes) + " bytes from or to an address that is not " +
                "aligned to them");
  }
  auto* const to = static_cast<std::byte*>(shared);
  if (shared_offset(to) < 0 || shared_offset(to) + bytes > static_cast<int64_t>(shared_bytes_)) {
    return fail("copies to " + describe(shared) + ", which is not within shared memory");
  }
  if (valid > 0) access(global, static_cast<size_t>(valid), Access::kRead, current_);
  access(shared, static_cast<size_t>(bytes), Access::kWrite, current_);
  set_in_flight(shared, static_cast<size_t>(bytes), true);
  fibers_[static_cast<size_t>(current_)]->copies.push_back(
      {to, static_cast<const std::byte*>(global), bytes, valid});
}

void Block::commit_copies() {
  Thread& thread = *fibers_[static_cast<size_t>(current_)];
  thread.groups.push_back(std::move(thread.copies));
  thread.copies.clear();
}

void Block::wait_copies(size_t pending) {
  Thread& thread = *fibers_[static_cast<size_t>(current_)];
  for (; thread.groups.size() > pending; thread.groups.pop_front()) {
    for (const Copy& copy : thread.groups.front()) land(copy);
  }
}

void Block::land(const Copy& copy) {
  const auto valid = static_cast<size_t>(copy.valid);
  set_in_flight(copy.shared, static_cast<size_t>(copy.bytes), false);
  access(copy.shared, static_cast<size_t>(copy.bytes), Access::kWrite, current_);
  if (valid > 0) std::memcpy(copy.shared, copy.global, valid);
  std::memset(copy.shared + valid, 0, static_cast<size_t>(copy.bytes) - valid);
}

LaunchObserver& launch_observer() {
  static LaunchObserver observer;
  return observer;
}

LaunchRecorder& launch_recorder() {
  static LaunchRecorder recorder;
  return recorder;
}

void run_grid(const std::array<uint32_t, 3>& grid, int threads, size_t shared_bytes,
              const KernelCall& call) {
  const uint64_t blocks = uint64_t{grid[0]} * grid[1] * grid[2];
  if (launch_observer()) return launch_observer()({call.kernel, blocks, threads, shared_bytes});
  static uint64_t launches = 0;
  const uint64_t launch = ++launches;
  if (threads <= 0 || threads % kLanes != 0 || threads > 1024) {
    device().report("a launch has " + std::to_string(threads) + " threads a block");
    return;
  }
  std::vector<uint64_t> order(blocks);
  std::iota(order.begin(), order.end(), uint64_t{0});
  std::shuffle(order.begin(), order.end(), std::mt19937_64(device().seed() + launch));
  // Blocks and their fibers are reused. A block that a fault has ended is leaked, because unwinding
  // its fibers would run code of the kernel.
  static auto* const blocks_of = new std::map<int, Block*>();
  Block*& block = (*blocks_of)[threads];
  if (block == nullptr) block = new Block(threads);
  block->bind(shared_bytes, call);
  for (const uint64_t index : order) {
    const std::array<uint32_t, 3> at{static_cast<uint32_t>(index % grid[0]),
                                     static_cast<uint32_t>(index / grid[0] % grid[1]),
                                     static_cast<uint32_t>(index / grid[0] / grid[1])};
    if (!block->run({.block = at, .grid = grid}, launch)) {
      block = nullptr;
      return;
    }
  }
}

}  // namespace multihead::cuda::emulator
