#!/bin/sh
# On a machine with an NVIDIA GPU: builds the CUDA kernels, runs them on the device against the oracle, under
# compute-sanitizer where it is installed, and measures them. Needs nvcc, CMake, Ninja, GoogleTest, Eigen, nlohmann_json
# and Highway 1.2 (here, or from `npm run setup`), and no network.
#
#   native/dev/cuda_check.sh [FILE]      writes FILE (cuda_check.txt): what was found, as text
#
# Exit code 0; 1 if something is wrong; 3 if there is no GPU.
set -u
cd "$(dirname "$0")/../.." || exit 1
file=$(realpath "${1:-cuda_check.txt}")
build=build/cuda-check
highway=build/toolchain/highway/usr
PATH="$PATH:$PWD/build/toolchain/cuda/bin:/usr/local/cuda/bin"

check() {
  date -u
  git rev-parse HEAD 2>/dev/null
  nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv,noheader || return 3
  nvcc --version | tail -2
  [ -d "$highway" ] && set -- "-Dhwy_ROOT=$PWD/$highway" || set --
  cmake -S . -B $build -G Ninja -DMULTIHEAD_CUDA=ON -DMULTIHEAD_PROGRAMS=OFF "$@" >$build.log 2>&1 &&
    cmake --build $build --target multihead-cuda-check >>$build.log 2>&1 ||
    { tail -40 $build.log; return 1; }
  program=$build/tests/multihead-cuda-check
  result=0
  timeout 240 $program 300 || result=1
  if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck synccheck; do
      echo "compute-sanitizer --tool $tool"
      timeout 60 compute-sanitizer --tool $tool --error-exitcode 9 $program 5 --no-timing >$build.log 2>&1 || result=1
      tail -5 $build.log
    done
  fi
  return $result
}

mkdir -p build
check >"$file" 2>&1
code=$?
cat "$file"
exit $code
