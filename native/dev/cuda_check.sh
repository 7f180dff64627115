#!/bin/sh
# On a machine with an NVIDIA GPU: builds the CUDA kernels, compares them with the oracle on the device, and measures them.
# If PyTorch is installed, it also measures cuDNN and FlashAttention. If compute-sanitizer is installed, it also runs the
# kernels under it. Needs nvcc, CMake, Ninja, GoogleTest, Eigen, nlohmann_json and Highway 1.2 (installed, or from
# `npm run setup`); for measurements also Google Benchmark and CLI11. Needs no network. CMAKE_PREFIX_PATH may name folders
# with the libraries.
#
#   native/dev/cuda_check.sh [FILE]                    writes the results to FILE (default cuda_check.txt)
#   native/dev/cuda_check.sh --pack FOLDER             builds only, and copies the programs and their libraries to FOLDER
#   native/dev/cuda_check.sh --built FOLDER [FILE]     builds nothing, runs those programs: the GPU machine then needs none of the above
#
# It builds for this machine's GPU, or for CUDA_CHECK_ARCHITECTURES (80, 86, 89, 90a, 100, 120) if that is set.
#
# It has four parts, of which CUDA_CHECK_PARTS may name some (default: checks measure compare sanitize), so that each can
# have all the time of a call.
#
# Each check and each group of measurements runs in its own process with its own time limit, so that a kernel that fails or
# hangs does not affect the others. Results are printed and written to FILE immediately. The script ends within
# CUDA_CHECK_SECONDS (default 460): the last steps are cut off or left out. A check has CUDA_CHECK_LIMIT seconds (default 15).
# Exit code 0; 1 if something is wrong; 2 for wrong arguments; 3 if there is no GPU.
set -u
usage() {
  echo "Usage: $0 [--pack FOLDER | --built FOLDER] [FILE]" >&2
  exit 2
}
mode=build
case ${1-} in
  --pack | --built)
    mode=${1#--}
    [ $# -ge 2 ] || usage
    folder=$(realpath -m "$2")
    shift 2
    ;;
  -*) usage ;;
esac
if [ $# -gt 1 ] || [ "$mode$#" = pack1 ]; then usage; fi
for part in ${CUDA_CHECK_PARTS-}; do
  case $part in
    checks | measure | compare | sanitize) ;;
    *)
      echo "CUDA_CHECK_PARTS: expected checks, measure, compare or sanitize, got $part" >&2
      exit 2
      ;;
  esac
done
file=$(realpath "${1:-cuda_check.txt}")
cd "$(dirname "$0")/../.." || exit 1
build=build/cuda-check
highway=build/toolchain/highway/usr
program=$build/tests/multihead-cuda-check
bench=$build/native/multihead-bench
PATH="$PWD/build/toolchain/cuda/bin:$PATH:/usr/local/cuda/bin:/usr/local/nvidia/bin"
end=$(($(date +%s) + ${CUDA_CHECK_SECONDS:-460}))
limit=${CUDA_CHECK_LIMIT:-15}
result=0

# limited SECONDS COMMAND...: runs the command for at most SECONDS and at most the remaining time. Returns 124 if it was cut off.
limited() {
  seconds=$((end - $(date +%s)))
  if [ "$seconds" -lt 3 ]; then
    shift
    echo "left out, since no time is left: $*"
    return 124
  fi
  [ "$1" -ge "$seconds" ] || seconds=$1
  shift
  timeout -k 2 "$seconds" "$@"
  code=$?
  # 137: killed, because it ignored the first signal.
  if [ $code -eq 124 ] || [ $code -eq 137 ]; then
    echo "cut off after $seconds seconds: $*"
    return 124
  fi
  return $code
}

configure() {
  cmake -S . -B $build -G Ninja -DCMAKE_BUILD_TYPE=Release -DMULTIHEAD_CUDA=ON "-DCMAKE_BUILD_RPATH=\$ORIGIN/lib" "$@" >$build.log 2>&1
}

# build_programs SECONDS: builds the programs. Succeeds if at least one of them exists.
build_programs() {
  may_take=$1
  nvcc --version | tail -2
  rm -f "$program" "$bench"
  shift
  if [ -d "$highway" ]; then set -- "-Dhwy_ROOT=$PWD/$highway"; fi
  # Build only for this machine's GPU, and with all processors: otherwise the largest file takes minutes.
  architectures=${CUDA_CHECK_ARCHITECTURES-}
  if [ -z "$architectures" ]; then
    case $(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null) in
      8.6) architectures=86 ;;
      8.9) architectures=89 ;;
      8.*) architectures=80 ;;
      9.0*) architectures=90a ;;
    esac
  fi
  if [ -n "$architectures" ]; then set -- "$@" "-DMULTIHEAD_CUDA_ARCHITECTURES=$architectures"; fi
  if nvcc --help 2>/dev/null | grep -q split-compile; then
    set -- "$@" "-DCMAKE_CUDA_FLAGS=--threads=0 --split-compile=0"
  fi
  programs="multihead-cuda-check multihead-bench"
  if ! configure -DMULTIHEAD_PROGRAMS=ON "$@"; then
    echo "not measured: multihead-bench cannot be configured ($(grep -m 1 -A 1 'CMake Error' $build.log | tr '\n' ' '))"
    programs=multihead-cuda-check
    configure -DMULTIHEAD_PROGRAMS=OFF "$@" || { tail -40 $build.log; return 1; }
  fi
  # -k 0: if one program fails to build, still build the other.
  # shellcheck disable=SC2086
  if ! limited "$may_take" cmake --build $build --target $programs -- -k 0 >>$build.log 2>&1; then
    grep -A 12 FAILED: $build.log | head -60
    tail -20 $build.log
    result=1
  fi
  [ -x "$program" ] || [ -x "$bench" ]
}

pack() {
  mkdir -p "$folder/lib"
  for built in "$program" "$bench"; do
    [ -x "$built" ] || { echo "not built: $built"; return 1; }
    cp "$built" "$folder"
    strip "$folder/$(basename "$built")"
    # Copy all libraries except glibc.
    ldd "$built" | sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p' | grep -v '/lib\(c\|m\|dl\|rt\|pthread\)\.so' | while read -r library; do
      cp -L "$library" "$folder/lib"
    done
  done
  du -sh "$folder"
}

# Runs each check. Primitives come first, because every kernel depends on them.
run_checks() {
  names=$("$program" --list) || { echo "multihead-cuda-check does not start"; result=1; return; }
  for name in $names; do
    case $name in random-*) of_check=$((3 * limit)) ;; *) of_check=$limit ;; esac
    limited "$of_check" "$program" "$name" 100 2>&1
    code=$?
    if [ $code -eq 3 ]; then result=3; return; fi
    [ $code -eq 0 ] || { echo "$name: FAILED with exit code $code"; result=1; }
  done
}

clocks() {
  command -v nvidia-smi >/dev/null || return 0
  nvidia-smi --query-gpu=clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_throttle_reasons.active --format=csv,noheader
}

measure() {
  echo "clocks before: $(clocks)"
  for cases in forward/d128 forward/d64 forward/d256 backward/d128 backward/d64 backward/d256; do
    measure_cases 25 "^$cases-(512|4k|16k)/[a-z]+/bf16/"
  done
  measure_cases 20 '^decode/llama3-b.*/bf16/'
  measure_cases 20 '^cache/llama3-b.*/bf16/'
  echo "clocks after: $(clocks)"
}
measure_cases() {
  limited "$1" "$bench" --device=cuda --explain --benchmark_min_time=0.05 "--benchmark_filter=$2" 2>&1
  code=$?
  [ $code -eq 0 ] || [ $code -eq 124 ] || result=1
}

compare() {
  # Exit code 3: no PyTorch; 127: no Python.
  limited 150 python3 native/bench/cuda_peers.py --bench "$bench" \
    --filter '^(forward/d(64|128|256)-(2k|8k)/[a-z]+|decode/llama3-b.*)/bf16/' 2>&1
  code=$?
  [ $code -eq 0 ] || [ $code -eq 3 ] || [ $code -eq 124 ] || [ $code -eq 127 ] || result=1
}

sanitize() {
  command -v compute-sanitizer >/dev/null || return 0
  # Hopper's kernels first; racecheck before memcheck, since barriers are what the emulator models least exactly.
  names=$("$program" --list | grep -v '^random-')
  # shellcheck disable=SC2086
  for name in $(printf '%s\n' $names | grep hopper; printf '%s\n' $names | grep -v hopper); do
    for tool in racecheck memcheck synccheck; do
      said=$(limited "$limit" compute-sanitizer --tool $tool --error-exitcode 9 "$program" "$name" 2>&1)
      code=$?
      echo "compute-sanitizer --tool $tool, $name: $(echo "$said" | tail -1)"
      [ $code -eq 0 ] || [ $code -eq 124 ] || { echo "$said" | head -30; result=1; }
    done
  done
}

has_gpu() {
  if command -v nvidia-smi >/dev/null; then
    nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv,noheader
  else
    [ -e /dev/nvidia0 ]
  fi
}

check() {
  date -u
  git rev-parse HEAD 2>/dev/null
  has_gpu || { echo "skipped: no NVIDIA GPU (nvidia-smi fails, or neither it nor /dev/nvidia0 is there)"; result=3; return; }
  if [ "$mode" = built ]; then
    program=$folder/multihead-cuda-check
    bench=$folder/multihead-bench
  else
    build_programs 250 || { result=1; return; }
    echo "built after $((${CUDA_CHECK_SECONDS:-460} - end + $(date +%s))) seconds"
  fi
  for part in ${CUDA_CHECK_PARTS:-checks measure compare sanitize}; do
    case $part in
      checks) [ ! -x "$program" ] || run_checks ;;
      measure) [ ! -x "$bench" ] || measure ;;
      compare) [ ! -x "$bench" ] || compare ;;
      sanitize) [ ! -x "$program" ] || sanitize ;;
    esac
    [ $result -ne 3 ] || return
  done
}

mkdir -p build
if [ "$mode" = pack ]; then
  end=$((end + 86400))
  build_programs 86400 && [ $result -eq 0 ] && pack
  exit
fi
{
  check
  echo $result >$build.code
} 2>&1 | tee "$file"
exit "$(cat $build.code)"
