#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/status.h"
#include "synchronizer/ipc/copy_engine.h"

// The transport "ipc" without a GPU: memory files in place of CUDA's handles, memcpy in place of copy engines.
namespace syncopate::synchronizer::ipc {

// Memory that another process can map. It is zero at first.
class HostMemory {
 public:
  HostMemory(uint64_t id, int64_t bytes) : id_(id), bytes_(bytes), file_(::memfd_create("weights", MFD_CLOEXEC)) {
    SYNCOPATE_CHECK(file_.valid() && ::ftruncate(file_.get(), bytes) == 0);
    data_ = Map(file_.get(), bytes);
  }
  ~HostMemory() { ::munmap(data_, static_cast<size_t>(bytes_)); }
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  uint64_t id() const { return id_; }
  SharedMemory Lend() const {
    auto lent = std::make_shared<LentMemory>();
    lent->info = {id_, "", {bytes_}};
    lent->handles.emplace_back(::dup(file_.get()));
    return lent;
  }
  static char* Map(int file, int64_t bytes) {
    void* data = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    SYNCOPATE_CHECK(data != MAP_FAILED);
    return static_cast<char*>(data);
  }

 private:
  const uint64_t id_;
  const int64_t bytes_;
  const FileDescriptor file_;
  char* data_ = nullptr;
};

class HostCopyEngine final : public CopyEngine {
 public:
  // Called before each copy, on the thread of the receiver; an error becomes the copy's error. Not thread-safe: set it
  // before the first copy.
  std::function<absl::Status(const char* from, int64_t bytes)> on_copy = nullptr;
  absl::Status map_error;  // the result of Map, if it is not OK
  bool stuck = false;      // true: copies never finish
  int maps() const { return maps_; }

  absl::StatusOr<std::shared_ptr<const MappedMemory>> Map(LentMemory memory) override {
    SYNCOPATE_RETURN_IF_ERROR(map_error);
    ++maps_;
    return std::make_shared<const Mapping>(HostMemory::Map(memory.handles.front().get(), memory.info.bytes()),
                                           memory.info.bytes());
  }
  absl::StatusOr<std::unique_ptr<CopyQueue>> NewQueue() override { return std::make_unique<Queue>(this); }

 private:
  class Mapping final : public MappedMemory {
   public:
    Mapping(char* data, int64_t bytes) : data_(data), bytes_(bytes) {}
    ~Mapping() override { ::munmap(data_, static_cast<size_t>(bytes_)); }
    const char* data() const override { return data_; }

   private:
    char* const data_;
    const int64_t bytes_;
  };

  class Queue final : public CopyQueue {
   public:
    explicit Queue(HostCopyEngine* engine) : engine_(engine) {}
    absl::Status Copy(char* to, const char* from, int64_t bytes) override {
      if (engine_->on_copy != nullptr) SYNCOPATE_RETURN_IF_ERROR(engine_->on_copy(from, bytes));
      std::memcpy(to, from, static_cast<size_t>(bytes));
      ++copies_;
      return absl::OkStatus();
    }
    absl::StatusOr<int64_t> Finished() override { return engine_->stuck ? 0 : copies_; }
    void* stream() override { return nullptr; }
    absl::Status Drain(absl::Duration) override {
      if (!engine_->stuck) return absl::OkStatus();
      return Error(absl::StatusCode::kInternal, "COPY_STUCK", "the copies never end");
    }

   private:
    HostCopyEngine* const engine_;
    int64_t copies_ = 0;
  };

  std::atomic<int> maps_ = 0;
};

}  // namespace syncopate::synchronizer::ipc
