#include "models/io/file_map.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <new>
#include <string>
#include <system_error>

#include "engine/error/error.h"
#include "multihead/status.h"

#if defined(__unix__) || defined(__APPLE__)
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <span>
#include <utility>
#define MULTIHEAD_MAPS_FILES 1
#endif

namespace multihead::models {
namespace {

Status unreadable(const std::string& path, const std::string& reason) {
  return {StatusCode::kFormat, path, "a readable file", reason};
}

constexpr const char* kNoFile = "a folder, a pipe or a device";

}  // namespace

#if defined(MULTIHEAD_MAPS_FILES)
Status FileMap::open(const std::string& path, std::shared_ptr<FileMap>& map) {
  // Opening a pipe would wait for its writer.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return unreadable(path, std::generic_category().message(errno));
  auto made = std::make_shared<FileMap>();
  // The size of the very file that is mapped: the path may lead to another one by now.
  struct stat found = {};
  Status status;
  if (::fstat(file, &found) != 0) {
    status = unreadable(path, std::generic_category().message(errno));
  } else if (!S_ISREG(found.st_mode)) {
    status = unreadable(path, kNoFile);
  } else if (found.st_size > 0) {
    const auto count = static_cast<size_t>(found.st_size);
    void* const memory = ::mmap(nullptr, count, PROT_READ, MAP_PRIVATE, file, 0);
    made->mapped_ = memory != MAP_FAILED;
    if (made->mapped_) {
      made->bytes_ = {static_cast<const std::byte*>(memory), count};
    } else {
      status = made->read(path, count);
    }
  }
  ::close(file);
  if (status.ok()) map = std::move(made);
  return status;
}
#else
Status FileMap::open(const std::string& path, std::shared_ptr<FileMap>& map) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return unreadable(path, error ? error.message() : kNoFile);
  }
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return unreadable(path, error.message());
  auto made = std::make_shared<FileMap>();
  if (size > 0) MULTIHEAD_TRY(made->read(path, static_cast<size_t>(size)));
  map = std::move(made);
  return {};
}
#endif

Status FileMap::read(const std::string& path, size_t count) {
  auto* const bytes = new (std::nothrow) std::byte[count];
  if (bytes == nullptr) return Status::out_of_memory(count);
  bytes_ = {bytes, count};
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(bytes), static_cast<std::streamsize>(count));
  return file ? Status() : unreadable(path, "a read error");
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
