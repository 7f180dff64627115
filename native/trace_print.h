// Prints the steps of a trace: as rounded matrices, or as JSON.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "multihead/multihead.h"

namespace multihead::trace {

struct PrintOptions {
  int64_t head = 1;     // head to show, counted from 1
  int64_t columns = 8;  // limit on the columns shown, unless columns are tokens
};

// The name and meaning of every step.
const std::map<std::string, const char*>& step_meanings();

// Prints JSON. JSON has no infinities, so they become null.
void print_json(const std::vector<std::string>& tokens, const Trace& trace);

void print_steps(const PrintOptions& options, const std::vector<std::string>& tokens,
                 const Trace& trace);

}  // namespace multihead::trace
