#include "cases.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cases_json.h"

namespace multihead::bench {
namespace {

using nlohmann::json;

// In the order of the enumerations.
constexpr const char* kMasks[] = {"full",    "causal",      "boolean",     "padding",
                                  "lengths", "window",      "bias",        "alibi",
                                  "weights", "blocks-1of2", "blocks-1of3", "blocks-1of6"};
constexpr const char* kOps[] = {"forward", "backward", "decode", "cache", "append", "merge",
                                "module",  "step",     "train",  "gemm",  "linear"};

template <class T, size_t N>
T value_of(const char* const (&names)[N], const std::string& name) {
  return static_cast<T>(std::find(names, names + N, name) - names);
}

// Parsed once; the names of shapes and dtypes point into it.
const json& table() {
  static const json kTable = json::parse(kCasesJson);
  return kTable;
}

const char* c_str(const json& text) { return text.get_ref<const std::string&>().c_str(); }

Shape shape_of(const json& name) {
  const std::vector<int64_t> n = table()["shapes"].at(c_str(name)).get<std::vector<int64_t>>();
  Shape shape{c_str(name), n[0], n[1], n[2], n[3], n[4], n[5]};
  const std::string text = shape.name;
  shape.tokens_first = text.ends_with("-bnhd");
  if (text == "packed-256") shape.sequences = 256, shape.shortest = 16;
  return shape;
}

void add_cases(const char* in, int threads, std::vector<Case>& cases) {
  static const json kFull = {"full"}, kF32 = {"f32"};
  for (const json& entry : table()["cases"]) {
    if (entry.value("in", "") != in) continue;
    const Op op = value_of<Op>(kOps, entry["op"]);
    const auto list = [&](const char* name, const json& otherwise) -> const json& {
      const auto found = entry.find(name);
      return found == entry.end() ? otherwise : *found;
    };
    for (const json& shape : entry["shapes"]) {
      for (const json& mask : list("masks", kFull)) {
        for (const json& dtype : list("dtypes", kF32)) {
          cases.push_back(
              {op, shape_of(shape), value_of<Mask>(kMasks, mask), c_str(dtype), threads});
        }
      }
    }
  }
}

}  // namespace

const char* name_of(Mask mask) { return kMasks[static_cast<size_t>(mask)]; }
const char* name_of(Op op) { return kOps[static_cast<size_t>(op)]; }

std::string Case::name() const {
  return std::string(name_of(op)) + "/" + shape.name + "/" + name_of(mask) + "/" + dtype +
         (threads == kOnDevice ? "/cuda" : "/threads:" + std::to_string(threads));
}

std::vector<Case> all_cases(const std::vector<int>& threads) {
  std::vector<Case> cases;
  for (const int count : threads) {
    add_cases("", count, cases);
    add_cases("native", count, cases);
  }
  return cases;
}

std::vector<std::string> report_names() { return table()["report"]; }

std::vector<Case> all_device_cases() {
  std::vector<Case> cases;
  add_cases("cuda", kOnDevice, cases);
  return cases;
}

}  // namespace multihead::bench
