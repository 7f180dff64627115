// Prints the steps of a trace: as rounded matrices, or as JSON.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "multihead/multihead.h"

namespace multihead::trace {

struct PrintOptions {
  int64_t head = 1;     // shown of steps that have heads, counted from 1
  int64_t columns = 8;  // shown of a matrix at most, unless its columns are tokens
};

// Every step by its name, and what it is.
const std::map<std::string, const char*>& step_meanings();

// JSON has no infinities: null stands for one.
void print_json(const std::vector<std::string>& tokens, const Trace& trace);

void print_steps(const PrintOptions& options, const std::vector<std::string>& tokens,
                 const Trace& trace);

}  // namespace multihead::trace
