#!/bin/sh
# Builds LLVM's C++ library for musl, which Debian does not have, from Debian's source of LLVM: /opt/musl/libcxx. Runs as
# root in the Debian 13 of `npm run try-processors`; three minutes.
set -eu
at=/opt/musl
[ ! -e $at/libcxx/lib/libc++.a ] || exit 0
rm -rf $at
mkdir -p $at/source $at/kernel
cd $at
echo 'deb-src http://deb.debian.org/debian trixie main' > /etc/apt/sources.list.d/source.list
apt-get update
apt-get source --download-only --tar-only llvm-toolchain-19
tar -xJf llvm-toolchain-19_*.orig.tar.xz -C source --strip-components=1 --wildcards --exclude='*/test/*' \
  '*/libcxx/*' '*/libcxxabi/*' '*/libunwind/*' '*/runtimes/*' '*/cmake/*'
rm llvm-toolchain-19_*
# The kernel's headers without those of glibc beside them.
ln -s /usr/include/linux kernel/linux
ln -s /usr/include/asm-generic kernel/asm-generic
ln -s /usr/include/x86_64-linux-gnu/asm kernel/asm
flags="--target=x86_64-linux-musl -nostdlibinc -isystem /usr/include/x86_64-linux-musl -isystem $at/kernel"
cmake -G Ninja -S source/runtimes -B build -DLLVM_ENABLE_RUNTIMES='libunwind;libcxxabi;libcxx' \
  -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_FLAGS_RELEASE=-O1 -DCMAKE_CXX_FLAGS_RELEASE=-O1 \
  -DCMAKE_C_COMPILER=clang-19 -DCMAKE_CXX_COMPILER=clang++-19 -DCMAKE_C_FLAGS="$flags" -DCMAKE_CXX_FLAGS="$flags" \
  -DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY -DCMAKE_INSTALL_PREFIX=$at/libcxx -DLLVM_INCLUDE_TESTS=OFF \
  -DLIBCXX_HAS_MUSL_LIBC=ON -DLIBCXXABI_HAS_CXA_THREAD_ATEXIT_IMPL=OFF -DLIBCXX_CXX_ABI=libcxxabi -DLIBCXXABI_USE_LLVM_UNWINDER=ON \
  -DLIBCXX_ENABLE_SHARED=OFF -DLIBCXXABI_ENABLE_SHARED=OFF -DLIBUNWIND_ENABLE_SHARED=OFF \
  -DLIBCXX_INCLUDE_TESTS=OFF -DLIBCXXABI_INCLUDE_TESTS=OFF -DLIBUNWIND_INCLUDE_TESTS=OFF -DLIBCXX_INCLUDE_BENCHMARKS=OFF
ninja -C build install
rm -r build source
