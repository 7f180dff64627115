/// \file
/// The version of the library, by semantic versioning. This header is the only place that states
/// it: CMakeLists.txt reads these lines, and copies the version to the files for CMake and
/// pkg-config and to the WebAssembly modules.
#pragma once

#define MULTIHEAD_VERSION_MAJOR 0  ///< 0: a new minor version may change the interface
#define MULTIHEAD_VERSION_MINOR 1  ///< also in the name of the shared library
#define MULTIHEAD_VERSION_PATCH 0  ///< compatible corrections
