// Compares the CUDA kernels with the oracle on the device of this machine.
//
//   multihead-cuda-check [--list] [CHECK [calls]]
//
// Without a name it runs all checks: primitives, a few small calls of each kernel, and random
// calls, by default 100 of each kind. A kernel that fails or hangs stops the program, so
// native/dev/cuda_check.sh runs each check in a separate process. --list prints the names of the
// checks. Exit code 0; 1 if a result is wrong; 2 for wrong arguments; 3 if there is no device.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string_view>

#include "cuda/device_checks.h"
#include "cuda/device_memory.h"
#include "multihead/cuda.h"

namespace multihead::testing {
namespace {

struct Check {
  const char* name;
  std::function<int(uint64_t calls)> wrong_results;
  bool for_hopper = false;
};

Check without_calls(const char* name, int (&check)(), bool for_hopper = false) {
  return {name, [&check](uint64_t) { return check(); }, for_hopper};
}
Check of_kernel(const char* name, const KernelCheck& kernel) {
  return {name, [kernel](uint64_t) { return check_kernel(kernel); },
          std::string_view(kernel.kernel) == "wgmma"};
}

// Primitives come first. Calls without options run mma.sync if their width is a multiple of 8 that
// the Hopper kernels do not support, and f32 if it is odd.
const Check kChecks[] = {
    without_calls("cp.async", check_asynchronous_copies),
    without_calls("barriers", check_barriers),
    without_calls("mma.sync", check_mma),
    without_calls("tma-and-wgmma", check_tma_and_wgmma, true),
    without_calls("wgmma-shapes", check_wgmma_shapes, true),
    without_calls("setmaxnreg", check_register_exchange, true),
    of_kernel("forward-hopper-64", {"wgmma", false, 64}),
    of_kernel("forward-hopper-128", {"wgmma", false, 128}),
    of_kernel("forward-hopper-256", {"wgmma", false, 256}),
    of_kernel("forward-hopper-options-64", {"wgmma", false, 64, true}),
    of_kernel("forward-hopper-options-128", {"wgmma", false, 128, true}),
    // Too few queries for a tile of one head.
    of_kernel("forward-hopper-shared", {"wgmma", false, 64, false, 70}),
    of_kernel("backward-hopper-64", {"wgmma", true, 64}),
    of_kernel("backward-hopper-128", {"wgmma", true, 128}),
    of_kernel("backward-hopper-256", {"wgmma", true, 256}),
    of_kernel("forward-mma-64", {"mma.sync", false, 40}),
    of_kernel("forward-mma-128", {"mma.sync", false, 104}),
    of_kernel("forward-mma-256", {"mma.sync", false, 200}),
    of_kernel("forward-mma-options-64", {"mma.sync", false, 40, true}),
    of_kernel("forward-mma-options-128", {"mma.sync", false, 104, true}),
    of_kernel("forward-mma-options-256", {"mma.sync", false, 256, true}),
    of_kernel("backward-mma-64", {"mma.sync", true, 40}),
    of_kernel("backward-mma-128", {"mma.sync", true, 104}),
    of_kernel("backward-mma-256", {"mma.sync", true, 200}),
    of_kernel("backward-mma-options-64", {"mma.sync", true, 64, true}),
    of_kernel("backward-mma-options-128", {"mma.sync", true, 128, true}),
    of_kernel("backward-mma-options-256", {"mma.sync", true, 256, true}),
    of_kernel("forward-f32-64", {"f32", false, 63}),
    of_kernel("forward-f32-128", {"f32", false, 127}),
    of_kernel("forward-f32-256", {"f32", false, 255}),
    of_kernel("backward-f32-64", {"f32", true, 63}),
    of_kernel("backward-f32-128", {"f32", true, 127}),
    of_kernel("backward-f32-256", {"f32", true, 255}),
    of_kernel("decode-mma-64", {"decode, mma.sync", false, 40, false, 1}),
    of_kernel("decode-mma-128", {"decode, mma.sync", false, 128, true, 1}),
    of_kernel("decode-mma-256", {"decode, mma.sync", false, 200, false, 1}),
    of_kernel("decode-f32", {"decode, f32", false, 127, false, 1}),
    without_calls("second-stream", check_second_stream),
    without_calls("graph", check_graph),
    without_calls("prepared", check_prepared),
    {"random-packed", check_packed},
    {"random-caches", check_caches},
    {"random-merge", check_merge},
    {"random-captures", check_captures},
    {"random-nan", check_nan},
    {"random-forward", check_random_forward},
    {"random-backward", check_random_backward},
    {"random-tensor-cores", check_random_tensor_cores},
};

bool is_hopper() {
  int device = 0, major = 0;
  must(cudaGetDevice(&device), "cudaGetDevice");
  must(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
       "cudaDeviceGetAttribute");
  return major == 9;
}

// Runs a check. True if it found nothing wrong.
bool run(const Check& check, uint64_t calls) {
  std::printf("%s: ", check.name);
  std::fflush(stdout);
  if (check.for_hopper && !is_hopper()) {
    std::printf("skipped: the compute capability is not 9.0\n");
    return true;
  }
  const int wrong = check.wrong_results(calls);
  if (wrong == 0) {
    std::printf("right\n");
  } else {
    std::printf("%s: WRONG, %d results\n", check.name, wrong);
  }
  return wrong == 0;
}

}  // namespace
}  // namespace multihead::testing

int main(int argc, char** argv) {
  using namespace multihead;  // NOLINT(google-build-using-namespace)
  // Line buffering keeps the output of a program that is killed.
  std::setvbuf(stdout, nullptr, _IOLBF, size_t{1} << 12U);
  const std::string_view name = argc > 1 ? argv[1] : "";
  if (name == "--list") {
    for (const auto& check : testing::kChecks) std::printf("%s\n", check.name);
    return 0;
  }
  uint64_t calls = 100;
  if (argc > 2) {
    char* end = nullptr;
    calls = std::strtoull(argv[2], &end, 10);
    if (*end != '\0' || calls == 0) {
      std::fprintf(stderr, "calls: expected a number above 0, got %s\n", argv[2]);
      return 2;
    }
  }
  bool known = name.empty();
  for (const auto& check : testing::kChecks) known = known || name == check.name;
  if (!known || argc > 3) {
    std::fprintf(stderr, "Usage: multihead-cuda-check [--list] [CHECK [calls]]; got %s\n", argv[1]);
    return 2;
  }
  if (const Status status = cuda::available(); !status.ok()) {
    std::printf("skipped: no CUDA device (%s)\n", status.message().c_str());
    return 3;
  }
  bool right = true;
  for (const auto& check : testing::kChecks) {
    if (name.empty() || name == check.name) right = testing::run(check, calls) && right;
  }
  return right ? 0 : 1;
}
