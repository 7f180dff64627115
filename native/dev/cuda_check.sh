#!/bin/sh
# On a machine with an NVIDIA GPU: builds the CUDA kernels, runs them on the device against the oracle, measures them, beside
# cuDNN and FlashAttention where PyTorch is installed, and runs them under compute-sanitizer where that is installed. Needs
# nvcc, CMake, Ninja, GoogleTest, Eigen, nlohmann_json and Highway 1.2 (here, or from `npm run setup`), to measure also Google
# Benchmark and CLI11, and no network. CMAKE_PREFIX_PATH may name folders with them.
#
#   native/dev/cuda_check.sh [FILE]      writes FILE (cuda_check.txt): what was found, as text
#
# It ends within CUDA_CHECK_SECONDS, 460 if that is not set: what comes last is cut off or left out.
# Exit code 0; 1 if something is wrong; 3 if there is no GPU.
set -u
cd "$(dirname "$0")/../.." || exit 1
file=$(realpath "${1:-cuda_check.txt}")
build=build/cuda-check
highway=build/toolchain/highway/usr
PATH="$PATH:$PWD/build/toolchain/cuda/bin:/usr/local/cuda/bin"
end=$(($(date +%s) + ${CUDA_CHECK_SECONDS:-460}))

# limited SECONDS COMMAND...: no longer than so many seconds, and than are left of all. 124 if it was cut off.
limited() {
  seconds=$(($end - $(date +%s)))
  [ "$1" -lt "$seconds" ] && seconds=$1
  shift
  if [ "$seconds" -lt 3 ]; then
    echo "left out, since no time is left: $*"
    return 124
  fi
  timeout -k 2 "$seconds" "$@"
  code=$?
  [ $code -ne 124 ] || echo "cut off after $seconds seconds: $*"
  return $code
}

configure() {
  cmake -S . -B $build -G Ninja -DMULTIHEAD_CUDA=ON "$@" >$build.log 2>&1
}

check() {
  date -u
  git rev-parse HEAD 2>/dev/null
  nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv,noheader ||
    { echo "skipped: no NVIDIA GPU (nvidia-smi fails)"; return 3; }
  nvcc --version | tail -2
  [ -d "$highway" ] && set -- "-Dhwy_ROOT=$PWD/$highway" || set --
  programs="multihead-cuda-check multihead-bench"
  if ! configure -DMULTIHEAD_PROGRAMS=ON "$@"; then
    echo "not measured: multihead-bench cannot be configured ($(grep -m 1 -A 1 'CMake Error' $build.log | tr '\n' ' '))"
    programs=multihead-cuda-check
    configure -DMULTIHEAD_PROGRAMS=OFF "$@" || { tail -40 $build.log; return 1; }
  fi
  # shellcheck disable=SC2086
  limited 250 cmake --build $build --target $programs >>$build.log 2>&1 || { tail -40 $build.log; return 1; }
  result=0

  program=$build/tests/multihead-cuda-check
  limited 100 $program 100 || result=1

  bench=$build/native/multihead-bench
  if [ "$programs" != multihead-cuda-check ]; then
    limited 75 $bench --device=cuda --explain --benchmark_min_time=0.05 \
      --benchmark_filter='/d(64|128|256)-(512|4k|16k)/[a-z]+/bf16/|^(decode|cache)/llama3-b' 2>&1
    code=$?
    [ $code -eq 0 ] || [ $code -eq 124 ] || result=1
    # 3: without PyTorch
    limited 70 python3 native/bench/cuda_peers.py --bench $bench \
      --filter '/d(64|128|256)-(2k|8k)/[a-z]+/bf16/|^decode/llama3-b.*/bf16/' 2>&1
    code=$?
    [ $code -eq 0 ] || [ $code -eq 3 ] || [ $code -eq 124 ] || [ $code -eq 127 ] || result=1
  fi

  if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck synccheck; do
      echo "compute-sanitizer --tool $tool"
      limited 50 compute-sanitizer --tool $tool --error-exitcode 9 $program 5 >$build.log 2>&1
      code=$?
      [ $code -eq 0 ] || [ $code -eq 124 ] || result=1
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
