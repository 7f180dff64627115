#include "models/io/file_map.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <new>
#include <string>
#include <system_error>

#include "multihead/status.h"

#if defined(__unix__) || defined(__APPLE__)
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <span>
#include <utility>
#define MULTIHEAD_MAPS_FILES 1
#endif

namespace multihead::models {
namespace {

Status unreadable(const std::string& path, const std::string& reason) {
  return {StatusCode::kFormat, path, "a readable file", reason};
}

#if defined(MULTIHEAD_MAPS_FILES)
void* map_file(const std::string& path, size_t size) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return nullptr;
  void* const memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
  ::close(file);
  return memory == MAP_FAILED ? nullptr : memory;
}
#else
void* map_file(const std::string& /*path*/, size_t /*size*/) { return nullptr; }
#endif

}  // namespace

Status FileMap::open(const std::string& path, std::shared_ptr<FileMap>& map) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return unreadable(path, error ? error.message() : "something else");
  }
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return unreadable(path, error.message());
  auto made = std::make_shared<FileMap>();
  const auto count = static_cast<size_t>(size);
  if (count > 0) {
    if (void* const memory = map_file(path, count); memory != nullptr) {
      made->bytes_ = {static_cast<const std::byte*>(memory), count};
      made->mapped_ = true;
    } else {
      auto* const bytes = new (std::nothrow) std::byte[count];
      if (bytes == nullptr) return Status::out_of_memory(size);
      made->bytes_ = {bytes, count};
      std::ifstream file(path, std::ios::binary);
      file.read(reinterpret_cast<char*>(bytes), static_cast<std::streamsize>(count));
      if (!file) return unreadable(path, "a read error");
    }
  }
  map = std::move(made);
  return {};
}

FileMap::~FileMap() {
#if defined(MULTIHEAD_MAPS_FILES)
  if (mapped_) {
    ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
    return;
  }
#endif
  delete[] bytes_.data();
}

void FileMap::release(std::span<const std::byte> bytes) const {
#if defined(MULTIHEAD_MAPS_FILES)
  if (!mapped_) return;
  // Whole pages between the first and the last byte.
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<uintptr_t>(bytes.data()) + page - 1) / page * page;
  const auto end = reinterpret_cast<uintptr_t>(bytes.data() + bytes.size()) / page * page;
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  if (end > begin) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
#else
  static_cast<void>(bytes);
#endif
}

}  // namespace multihead::models
