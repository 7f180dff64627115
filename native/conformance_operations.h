// The inputs, outputs and attributes of each operation of the conformance pack.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include "conformance_case.h"
#include "multihead/safetensors.h"

namespace multihead::conformance {

enum class Kind : uint8_t { kFlag, kInteger, kNumber, kText, kIntegers, kRope };

struct AttributeRule {
  const char* name;
  Kind kind;
};

enum class Need : uint8_t { kRequired, kOptional, kOptionalMaybeEmpty };

// In the name of an input or output, # stands for the index of a layer.
struct InputRule {
  std::string name;
  std::initializer_list<SafetensorsEntry::Type> types;
  int least_rank, most_rank;
  Need need;
};

struct Operation {
  Outcome (*run)(const Case&, Context&);
  std::vector<InputRule> inputs;
  std::vector<std::string> outputs;
  std::vector<AttributeRule> attributes;
};

// Operations by their names in the manifests.
const std::map<std::string, Operation>& operations();

}  // namespace multihead::conformance
