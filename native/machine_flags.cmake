# The flags that compile for this machine's processor, as a list; empty if the compiler has none.
# They are tried with warnings as errors: on processors with AVX10.1, clang 19 warns about features
# that its own -march=native selects, for every function. Then the file is compiled without warnings.
include(CheckCXXSourceCompiles)

function(multihead_machine_flags result)
  set(CMAKE_REQUIRED_QUIET ON)
  foreach(flags "-march=native" "-march=native;-w")
    string(MAKE_C_IDENTIFIER "MULTIHEAD_COMPILES_${flags}" tried)
    set(CMAKE_REQUIRED_FLAGS "-Wall -Wextra -Werror")
    set(CMAKE_REQUIRED_DEFINITIONS ${flags})
    check_cxx_source_compiles("float twice(float x) { return x + x; }\nint main() { return twice(0) > 0; }" ${tried})
    if(${tried})
      set(${result} "${flags}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(${result} "" PARENT_SCOPE)
endfunction()
