// Runs the threads of a block as fibers on one CPU thread, in a random order, and checks their
// memory accesses.
//
// A fiber runs until it waits for a barrier, for the other lanes of its warp, or for a copy. The
// next fiber is chosen at random. Asynchronous effects (on_idle() events) happen as late as
// possible: only when no thread can continue. Races are found in every order, because vector clocks
// tell which accesses are ordered by barriers.
#pragma once

#include <array>
#include <boost/context/fiber.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cuda/emulator/clock.h"
#include "cuda/emulator/memory.h"

namespace multihead::cuda::emulator {

// The index of a block in the grid, and the size of the grid.
struct GridPlace {
  std::array<uint32_t, 3> block{}, grid{1, 1, 1};
};

// Calls a kernel with its parameters at [data, data + bytes).
struct KernelCall {
  const void* kernel;  // address of the kernel
  void (*run)(const void* data);
  const void* data;
  size_t bytes;
};

class Block {
 public:
  explicit Block(int threads);
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  // Sets the kernel and the shared memory of the next run().
  void bind(size_t shared_bytes, const KernelCall& call);
  // Runs one block. Returns false if a fault ended it.
  bool run(const GridPlace& place, uint64_t launch);

  // --- For primitives, called by a thread of the block ---

  int threads() const { return threads_; }
  int thread() const { return current_; }
  const GridPlace& place() const { return place_; }
  // Number of the launch since the program began, and of the block in its grid.
  uint64_t launch() const { return launch_; }
  uint64_t number() const { return block_; }
  std::byte* shared() { return shared_; }
  size_t shared_bytes() const { return shared_bytes_; }
  uint64_t random() { return random_(); }

  // Lets other threads run until `ready()`, which is checked only when no other thread can
  // continue. `what` appears in the report of a deadlock.
  void wait(std::string what, std::function<bool()> ready);
  // Runs `event` once, when no thread can continue.
  void on_idle(std::function<void()> event) { events_.push_back(std::move(event)); }
  // Runs `check` when all threads have ended.
  void at_end(std::function<void()> check) { checks_.push_back(std::move(check)); }

  // The actor number of the asynchronous engine (copies by TMA, wgmma). Threads are actors too.
  int async_actor() const { return threads_; }
  Clock& clock(int actor) { return clocks_[static_cast<size_t>(actor)]; }
  // release(): orders what `actor` did so far before any actor that later acquires `object`.
  void release(Clock& object, int actor);
  void acquire(const Clock& object, int actor) { clock(actor).join(object); }

  // True if the current thread has these bytes for itself: most accesses are to local arrays.
  bool is_local(const void* address, size_t bytes) const {
    const auto* const at = static_cast<const std::byte*>(address);
    const std::byte* const stack = stacks_ + static_cast<size_t>(current_) * kStack;
    return at >= stack && at + bytes <= stack + kStack;
  }
  // Checks an access of an actor to shared or global memory. Ends the block if the address is
  // outside all memory that it may use.
  void access(const void* address, size_t bytes, Access access, int actor);
  // Marks bytes of shared memory that an asynchronous copy will write.
  void set_in_flight(const void* shared, size_t bytes, bool in_flight);
  // Gets the actor and time of the last write to a byte of shared memory. Returns false if there
  // was none.
  bool last_write(const void* shared, int& actor, uint32_t& time) const;

  // Reports a fault of the current thread.
  void report(const std::string& what) { report(what, current_); }
  void report(const std::string& what, int actor);
  // Reports a fault of the current thread and ends the block.
  void fail(const std::string& what);

  // Every lane of the current warp calls this with the same `kind`. The last lane calls
  // `together(arguments)` with the arguments of all lanes.
  using Lanes = std::array<void*, 32>;
  void with_warp(const char* kind, void* argument, void (*together)(Block&, const Lanes&));
  // Arrives at barrier `id`, and waits there if `waits`.
  void barrier(int id, int threads, bool waits);
  void sync_warp();

  // Returns what a 64-bit counter in global memory is, after a check that it may be used.
  uint64_t& counter(const void* address);
  // Orders what other blocks did before they added to a counter before the current thread, and what
  // it did before blocks that add later.
  void meet_blocks(const void* counter);
  void wait_for_previous_kernel() { fibers_[static_cast<size_t>(current_)]->has_waited = true; }

  // Implement cp.async of the current thread.
  void copy_async(void* shared, const void* global, int bytes, int valid);
  void commit_copies();
  void wait_copies(size_t pending);

 private:
  static constexpr size_t kStack = 256U << 10U;  // per thread; the lowest page is not accessible

  enum class State : uint8_t { kReady, kWaiting, kEnded };
  struct Copy {
    std::byte* shared;
    const std::byte* global;
    int bytes, valid;
  };
  struct Thread {
    boost::context::fiber fiber;
    State state = State::kReady;
    const char* waits_for = "";
    bool has_waited = false;               // for the previous kernel
    std::vector<Copy> copies;              // not yet committed
    std::deque<std::vector<Copy>> groups;  // committed
  };
  struct Warp {
    const char* kind = nullptr;
    int arrived = 0;
    Lanes arguments{};
  };
  struct Barrier {
    int threads = 0;
    int arrived = 0;
    Clock clock;
    std::vector<int> waiting;
  };
  struct Waiter {
    int thread;
    std::string what;
    std::function<bool()> ready;
  };

  void start(int thread);
  // Switches to run(), and returns when the thread is ready again.
  void suspend(const char* what);
  void wake(int thread);
  // Called when no thread is ready. True if a waiting thread or an event made one ready.
  bool wake_waiters();
  bool run_event();
  void report_deadlock();
  void land(const Copy& copy);
  std::string describe(const void* address) const;
  int64_t shared_offset(const void* address) const {
    return static_cast<const std::byte*>(address) - shared_;
  }

  int threads_;
  size_t shared_bytes_ = 0;
  KernelCall call_{};
  std::unique_ptr<std::byte[]> shared_memory_;
  std::byte* shared_ = nullptr;
  Shadow shared_shadow_;

  std::byte* stacks_ = nullptr;
  std::vector<std::unique_ptr<Thread>> fibers_;
  boost::context::fiber scheduler_;
  int current_ = -1;
  int running_ = 0;  // number of threads that have not ended
  bool ended_ = false;

  std::vector<int> ready_;
  std::vector<Waiter> waiters_;
  std::vector<std::function<void()>> events_, checks_;
  std::vector<Warp> warps_;
  std::array<Barrier, 16> barriers_;
  std::vector<Clock> clocks_;
  OrderedBlocks ordered_;

  GridPlace place_;
  uint64_t launch_ = 0, block_ = 0;
  std::mt19937_64 random_;
};

// The block whose code is running; null if none is.
inline Block* the_block = nullptr;
inline Block& block() { return *the_block; }

// True while device code runs, whose accesses are checked; false within the emulator.
inline bool checks_accesses = false;

// While a primitive holds this object, its own accesses are not checked.
class InsideEmulator {
 public:
  InsideEmulator() : before_(std::exchange(checks_accesses, false)) {}
  ~InsideEmulator() { checks_accesses = before_; }
  InsideEmulator(const InsideEmulator&) = delete;
  InsideEmulator& operator=(const InsideEmulator&) = delete;

 private:
  bool before_;
};

struct Launch {
  const void* kernel;
  uint64_t blocks;
  int threads;
  size_t shared_bytes;
};
using LaunchObserver = std::function<void(const Launch&)>;
// If set, the observer gets all launches, and no kernel runs.
LaunchObserver& launch_observer();

using LaunchRecorder = std::function<void(std::function<void()>)>;
// If set, the recorder gets all launches as functions that run them, and no kernel runs before.
LaunchRecorder& launch_recorder();

// Runs all blocks of a launch, in a random order.
void run_grid(const std::array<uint32_t, 3>& grid, int threads, size_t shared_bytes,
              const KernelCall& call);

}  // namespace multihead::cuda::emulator
