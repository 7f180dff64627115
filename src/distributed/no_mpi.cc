// Replaces transport_mpi.cc if the build found no MPI.
#include "multihead/distributed.h"
#include "multihead/status.h"

namespace multihead::distributed {
namespace {

Status no_mpi() {
  return {StatusCode::kOption, "communicator",
          "a build of multihead with MPI (Debian: libopenmpi-dev)", "one without"};
}

}  // namespace

Status Communicator::over_mpi(Communicator&) { return no_mpi(); }
Status Communicator::over_mpi(int, Communicator&) { return no_mpi(); }

}  // namespace multihead::distributed
