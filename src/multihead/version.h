/// \file
/// The version of the library, by semantic versioning. It is written here alone: CMakeLists.txt
/// reads these lines, and gives it to CMake's and pkg-config's files and to the WebAssembly
/// modules.
#pragma once

#define MULTIHEAD_VERSION_MAJOR 0  ///< 0: a new minor version may change the interface
#define MULTIHEAD_VERSION_MINOR 1  ///< also in the name of the shared library
#define MULTIHEAD_VERSION_PATCH 0  ///< compatible corrections
