# CUDA for the folder that includes this: the language, and how kernels are compiled.
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
# CMake 3.25 knows neither sm_90a nor that nvcc compiles C++20.
if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
endif()

# A build for one processor takes half the time.
set(MULTIHEAD_CUDA_ARCHITECTURES 80 90a CACHE STRING "For which processors the CUDA kernels are built: 80, 90a or both")
set(multihead_cuda_targets "")
foreach(architecture IN LISTS MULTIHEAD_CUDA_ARCHITECTURES)
  if(architecture STREQUAL "80")
    # Also as PTX, for processors newer than both.
    list(APPEND multihead_cuda_targets "-gencode=arch=compute_80,code=[sm_80,compute_80]")
  elseif(architecture STREQUAL "90a")
    list(APPEND multihead_cuda_targets "-gencode=arch=compute_90a,code=sm_90a")
  else()
    message(FATAL_ERROR "MULTIHEAD_CUDA_ARCHITECTURES: expected 80, 90a or both, got ${architecture}")
  endif()
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
