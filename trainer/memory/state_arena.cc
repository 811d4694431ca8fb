#include "trainer/memory/state_arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace syncopate::trainer {
namespace {

absl::Status OutOfMemory(int64_t bytes, const std::string& what) {
  return Error(absl::StatusCode::kResourceExhausted, "OUT_OF_MEMORY",
               absl::StrCat("no ", bytes >> 20, " MiB of host memory for ", what, ": ", std::strerror(errno)));
}

// Whole pages of this process.
class Pages {
 public:
  static absl::StatusOr<Pages> Reserve(int64_t bytes, const std::string& what) {
    const auto size = static_cast<size_t>(bytes);
    void* const data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return OutOfMemory(bytes, what);
    return Pages(static_cast<char*>(data), size);
  }
  ~Pages() {
    if (data_ != nullptr) munmap(data_, size_);
  }
  Pages(Pages&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}
  Pages& operator=(Pages&&) = delete;

  char* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  Pages(char* data, size_t size) : data_(data), size_(size) {}
  char* data_;
  const size_t size_;
};

class HostStateArena final : public StateArena {
 public:
  HostStateArena(Pages pages, int64_t bytes, Kind kind, std::string what)
      : StateArena(bytes, kind), pages_(std::move(pages)), what_(std::move(what)) {}

  char* data() const override { return pages_.data(); }

 private:
  absl::Status CopyToHost(char* host) override {
    std::memcpy(host, pages_.data(), pages_.size());
    return absl::OkStatus();
  }
  absl::Status CopyFromHost(const char* host) override {
    std::memcpy(pages_.data(), host, pages_.size());
    return absl::OkStatus();
  }
  absl::StatusOr<std::shared_ptr<char>> TakeHostMemory() const override {
    SYNCOPATE_ASSIGN_OR_RETURN(Pages taken, Pages::Reserve(bytes(), absl::StrCat("a copy of ", what_)));
    auto pages = std::make_shared<Pages>(std::move(taken));
    return std::shared_ptr<char>(pages, pages->data());
  }
  // On the CPU nothing could copy beside the computation, so the copy is made at once.
  absl::StatusOr<HostCopyWork> BeginCopyTo(char* host) override {
    std::memcpy(host, pages_.data(), pages_.size());
    return HostCopyWork();
  }
  absl::Status Release() override {
    if (madvise(pages_.data(), pages_.size(), MADV_DONTNEED) == 0) return Protect(PROT_NONE);
    return Error(absl::StatusCode::kInternal, "MADVISE", absl::StrCat(what_, ": ", std::strerror(errno)));
  }
  absl::Status Restore() override { return Protect(PROT_READ | PROT_WRITE); }
  absl::Status Protect(int how) {
    return mprotect(pages_.data(), pages_.size(), how) == 0 ? absl::OkStatus() : OutOfMemory(bytes(), what_);
  }

  const Pages pages_;
  const std::string what_;
};

}  // namespace

absl::StatusOr<int64_t> StateArena::Offload() {
  if (!on_device_) return 0;
  SYNCOPATE_RETURN_IF_ERROR(FinishCopies());
  const bool copies = kind_ == Kind::kChanging || (kind_ == Kind::kFrozen && !host_has_it_);
  if (copies) {
    if (kept_ == nullptr || kept_.use_count() > 1) {
      // A reader of what was offloaded before keeps that memory as long as it needs it.
      SYNCOPATE_ASSIGN_OR_RETURN(kept_, TakeHostMemory());
    }
    SYNCOPATE_RETURN_IF_ERROR(CopyToHost(kept_.get()));
  }
  host_has_it_ = true;
  SYNCOPATE_RETURN_IF_ERROR(Release());
  on_device_ = false;
  return copies ? bytes_ : 0;
}

absl::StatusOr<int64_t> StateArena::Load() {
  if (on_device_) return 0;
  SYNCOPATE_RETURN_IF_ERROR(Restore());
  on_device_ = true;
  if (kind_ == Kind::kDerived) return 0;
  const absl::Status copied = CopyFromHost(kept_.get());
  if (copied.ok()) return bytes_;
  // Memory without its contents is of no use, so it is released again.
  const absl::Status released = Release();
  on_device_ = !released.ok();
  return copied;
}

absl::StatusOr<HostCopy> StateArena::BeginCopy() {
  SYNCOPATE_CHECK(on_device_ || kind_ != Kind::kDerived);
  if (!on_device_) return HostCopy{kept_};
  if (copy_ == nullptr || copy_.use_count() > 1) {
    copy_ = nullptr;  // released first, so that two copies never exist at the same time
    SYNCOPATE_ASSIGN_OR_RETURN(copy_, TakeHostMemory());
  }
  SYNCOPATE_ASSIGN_OR_RETURN(HostCopyWork finish, BeginCopyTo(copy_.get()));
  return HostCopy{copy_, std::move(finish)};
}

absl::StatusOr<std::unique_ptr<StateArena>> MakeHostStateArena(int64_t bytes, StateArena::Kind kind,
                                                               const std::string& what) {
  SYNCOPATE_ASSIGN_OR_RETURN(Pages pages, Pages::Reserve(bytes, what));
  return std::make_unique<HostStateArena>(std::move(pages), bytes, kind, what);
}

}  // namespace syncopate::trainer
