// The list of tensors and the state dict that travel between C++ and JavaScript.
#include "listed.h"

#include <cstddef>
#include <cstdint>
#include <string>

#include "arguments.h"
#include "call.h"
#include "functions.h"
#include "results.h"

namespace multihead::bindings {

int32_t listed_count() { return static_cast<int32_t>(last_list.size()); }
void listed(int32_t index) { write(last_list[static_cast<size_t>(index)]); }

int32_t push_parameter() {
  const ParameterCall call;
  const int32_t status = run(call.from, [&] {
    pushed.insert_or_assign(std::string(call.name.begin(), call.name.end()), call.tensor);
    return Status();
  });
  if (status != 0) pushed = {};
  return status;
}

}  // namespace multihead::bindings
