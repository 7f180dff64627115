// A file as memory, read-only.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "multihead/status.h"

namespace multihead::models {

// A mapped file. Where a file cannot be mapped, its bytes are read instead.
class FileMap {
 public:
  // Errors: kFormat (no regular file, or one that cannot be read), kMemory.
  static Status open(const std::string& path, std::shared_ptr<FileMap>& map);
  FileMap() = default;
  ~FileMap();
  FileMap(const FileMap&) = delete;
  FileMap& operator=(const FileMap&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }
  // False if the bytes were read into memory of this object.
  bool mapped() const { return mapped_; }
  // Tells that these bytes are not needed any more: they leave this process's memory, and are read
  // again if they are.
  void release(std::span<const std::byte> bytes) const;

 private:
  // Reads the first `count` bytes into memory of this object.
  Status read(const std::string& path, size_t count);

  std::span<const std::byte> bytes_;
  bool mapped_ = false;
};

}  // namespace multihead::models
