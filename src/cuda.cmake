# CUDA for the folder that includes this: the language, and how kernels are compiled.
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
# CMake 3.25 knows neither sm_90a nor that nvcc compiles C++20.
if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
endif()

# Without code for its processor, a GPU compiles the kernels at their first launch, for up to a minute.
set(multihead_cuda_known 80 86 89 90a)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
  list(APPEND multihead_cuda_known 100 120)
endif()
list(JOIN multihead_cuda_known ", " multihead_cuda_named)
# A build for one processor takes a fraction of the time.
set(MULTIHEAD_CUDA_ARCHITECTURES ${multihead_cuda_known} CACHE STRING
  "For which processors the CUDA kernels are built: some of ${multihead_cuda_named}")
set(multihead_cuda_targets "")
foreach(architecture IN LISTS MULTIHEAD_CUDA_ARCHITECTURES)
  if(NOT architecture IN_LIST multihead_cuda_known)
    message(FATAL_ERROR "MULTIHEAD_CUDA_ARCHITECTURES: expected some of ${multihead_cuda_named}, got ${architecture}")
  endif()
  set(code "sm_${architecture}")
  if(architecture STREQUAL "80")
    # Also as PTX, for processors that are not listed.
    set(code "[sm_80,compute_80]")
  endif()
  list(APPEND multihead_cuda_targets "-gencode=arch=compute_${architecture},code=${code}")
endforeach()

# multihead_cuda_kernels(target GENERIC sources... HOPPER sources...) adds kernels to a target: those for sm_80 and
# newer, and those that only Hopper has.
function(multihead_cuda_kernels target)
  cmake_parse_arguments(PARSE_ARGV 1 kernels "" "" "GENERIC;HOPPER")
  set_source_files_properties(${kernels_GENERIC} PROPERTIES COMPILE_OPTIONS
    "${multihead_cuda_targets}")
  set_source_files_properties(${kernels_HOPPER} PROPERTIES COMPILE_OPTIONS
    "-gencode=arch=compute_90a,code=sm_90a")
  target_sources(${target} PRIVATE ${kernels_GENERIC} ${kernels_HOPPER})
  set_target_properties(${target} PROPERTIES
    CUDA_ARCHITECTURES OFF CUDA_STANDARD 20 CUDA_EXTENSIONS OFF)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr>)
  target_link_libraries(${target} PRIVATE CUDA::cudart_static)
endfunction()
