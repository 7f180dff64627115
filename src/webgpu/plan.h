// What a GPU with WebGPU is to do for a call: dispatches of kernels over numbered buffers. Planning
// is here, in the core, which no GPU is needed for; bindings/src/gpu/ plays a plan.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace multihead::webgpu {

// The adapter, as far as plans depend on it. The defaults are WebGPU's smallest limits. All
// kernels fit its smallest workgroup memory (16 KiB) and number of storage buffers (8).
struct Device {
  uint32_t subgroup = 0;               // invocations of every subgroup; 0: none, or they differ
  uint64_t binding_bytes = 128 << 20;  // longest binding of a storage buffer
  uint32_t groups = 65535;             // workgroups along one axis of a dispatch
  uint32_t operands = 0;               // of the call: the buffer that Plan::data has
};

// The files in kernels/, by name. Their first line may name constants: "// constants: NAME NAME".
// bindings/tables.mjs puts in "//#include FILE a=b", where $a becomes b, and "//#params BLOCK", the
// uniform block of params.inc with its sizes, and repeats the lines between "//#rows" and "//#done"
// for r = 0 to 3, or to 1 if WIDTH is 256. bindings/src/gpu/ selects the lines between "//#if NAME"
// (not 0) or "//#if NAME == 3", "//#else" and "//#end", which nest, by a constant's value, puts
// lines that begin with "enable" first, and declares the constants after them.
enum class Kernel : uint8_t {
#define MULTIHEAD_GPU_KERNEL(name, file) name,
#include "webgpu/kernels.inc"
#undef MULTIHEAD_GPU_KERNEL
};

// A part of a buffer, in words of 4 bytes. Buffers of a plan, by number: first the operands of the
// call, in the order of its arguments; then Plan::data, if it is not empty; then the scratch
// buffers.
struct Binding {
  uint32_t buffer = 0;
  uint32_t first_word = 0, words = 0;  // the first one at a multiple of 64 words
};

struct Dispatch {
  static constexpr int kConstants = 4;

  Kernel kernel;
  // Values of the constants that the first line of the kernel's file names, in that order. Text and
  // pipeline depend on nothing else, so they must be few: shapes and options are parameters.
  std::array<uint32_t, kConstants> constants{};
  std::array<uint32_t, 3> groups{1, 1, 1};
  std::vector<Binding> bindings;     // @binding(1) and following; @binding(0) are the parameters
  std::vector<uint32_t> parameters;  // the kernel's uniform block; floats as their bits
};

struct Plan {
  std::vector<uint32_t> data;     // arrays of the call, such as lengths, in one storage buffer
  std::vector<uint32_t> scratch;  // words of each scratch buffer
  std::vector<Dispatch> dispatches;
};

// The plan as one list of numbers, as JavaScript reads it: the lengths of data, scratch and
// dispatches, then their elements in order. A dispatch is: kernel, constants, groups, the number of
// bindings, that of parameters, the bindings (three numbers each), the parameters.
std::vector<uint32_t> packed(const Plan& plan);

}  // namespace multihead::webgpu
