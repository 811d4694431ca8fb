#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

namespace syncopate::synchronizer {

// A zero-initialised block of host memory, aligned for vector loads. Move-only.
class HostBuffer {
 public:
  static constexpr size_t kAlignment = 256;

  HostBuffer() = default;
  explicit HostBuffer(int64_t bytes)
      : data_(static_cast<char*>(::operator new (static_cast<size_t>(bytes), std::align_val_t{kAlignment}))),
        bytes_(bytes) {
    std::memset(data_.get(), 0, static_cast<size_t>(bytes));
  }

  char* data() { return data_.get(); }
  const char* data() const { return data_.get(); }
  int64_t size() const { return bytes_; }

 private:
  struct Free {
    void operator()(char* data) const { ::operator delete (data, std::align_val_t{kAlignment}); }
  };
  std::unique_ptr<char, Free> data_;
  int64_t bytes_ = 0;
};

}  // namespace syncopate::synchronizer
