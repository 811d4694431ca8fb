#include "rollouter/engine/shared_base_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate::rollouter {
namespace {

constexpr int64_t kPageBytes = 4096;

int64_t RoundUpToPages(int64_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

absl::Status SystemError(const char* what) {
  const int code = errno;
  return Error(absl::StatusCode::kInternal, "SYSTEM_ERROR", absl::StrCat(what, " failed with errno ", code));
}

}  // namespace

SharedBaseMemory::SharedBaseMemory(int64_t base_bytes, int64_t bytes)
    : base_bytes_(base_bytes),
      adapter_bytes_(RoundUpToPages(bytes - base_bytes)),
      requested_bytes_(bytes),
      base_(memfd_create("base weights", MFD_CLOEXEC)),
      has_adapters_(AdapterSets::kSets, true) {
  SYNCOPATE_CHECK(base_bytes % kPageBytes == 0 && bytes > base_bytes);
  // Memory that cannot be had is found here, and not at the first write, which would end the process.
  if (base_.get() < 0 || (base_bytes > 0 && posix_fallocate(base_.get(), 0, base_bytes) != 0)) throw std::bad_alloc();
  for (int32_t set = 0; set < AdapterSets::kSets; ++set) {
    const auto size = static_cast<size_t>(base_bytes_ + adapter_bytes_);
    void* const range = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) throw std::bad_alloc();
    ranges_.push_back(static_cast<char*>(range));
    if (base_bytes > 0 && mmap(range, static_cast<size_t>(base_bytes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                               base_.get(), 0) == MAP_FAILED) {
      throw std::bad_alloc();
    }
  }
}

SharedBaseMemory::~SharedBaseMemory() {
  for (char* range : ranges_) munmap(range, static_cast<size_t>(base_bytes_ + adapter_bytes_));
}

int64_t SharedBaseMemory::bytes() const {
  const int64_t sets = std::count(has_adapters_.begin(), has_adapters_.end(), true);
  return (has_base_ ? base_bytes_ : 0) + sets * (requested_bytes_ - base_bytes_);
}

absl::Status SharedBaseMemory::Release(std::optional<int32_t> kept) {
  for (int32_t set = 0; set < AdapterSets::kSets; ++set) {
    if (kept == set) continue;
    if (madvise(range(set) + base_bytes_, static_cast<size_t>(adapter_bytes_), MADV_DONTNEED) != 0) {
      return SystemError("giving an adapter set's memory back");
    }
    has_adapters_[static_cast<size_t>(set)] = false;
  }
  if (kept.has_value() || !has_base_) return absl::OkStatus();
  if (base_bytes_ > 0 && fallocate(base_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, base_bytes_) != 0) {
    return SystemError("giving the base's memory back");
  }
  has_base_ = false;
  return absl::OkStatus();
}

absl::Status SharedBaseMemory::Restore() {
  if (!has_base_ && base_bytes_ > 0 && posix_fallocate(base_.get(), 0, base_bytes_) != 0) {
    return Error(
        absl::StatusCode::kResourceExhausted, "OUT_OF_MEMORY",
        absl::StrCat("the base weights need ", base_bytes_ >> 20, " MiB of host memory, which is not there now"));
  }
  has_base_ = true;
  std::fill(has_adapters_.begin(), has_adapters_.end(), true);
  return absl::OkStatus();
}

}  // namespace syncopate::rollouter
