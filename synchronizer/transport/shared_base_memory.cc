#include "synchronizer/transport/shared_base_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/uuid.h"

namespace syncopate::synchronizer {
namespace {

// With these nobody can write to the memory by a mapping that is made later, nor change its size.
constexpr int kLentSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE;

int64_t RoundUpToPages(int64_t bytes) {
  constexpr int64_t kPage = SharedBaseMemory::kPageBytes;
  return (bytes + kPage - 1) / kPage * kPage;
}

absl::Status MemoryError(const char* what) {
  const int code = errno;
  return Error(absl::StatusCode::kInternal, "SYSTEM_ERROR", absl::StrCat(what, " failed with errno ", code));
}

// OK if `memory` cannot change while it is mapped here.
absl::Status CheckLent(const LentMemory& memory, int64_t base_bytes) {
  std::string why;
  struct stat status {};
  const int seals = memory.handles.empty() ? -1 : fcntl(memory.handles.front().get(), F_GET_SEALS);
  if (!memory.info.device.empty()) {
    why = absl::StrCat("it is memory of GPU ", memory.info.device);
  } else if (memory.info.chunks != std::vector<int64_t>{base_bytes} || memory.handles.size() != 1) {
    why = absl::StrCat("it has ", memory.info.bytes(), " bytes in ", memory.handles.size(), " parts instead of ",
                       base_bytes, " in one");
  } else if (fstat(memory.handles.front().get(), &status) != 0 || status.st_size < base_bytes) {
    why = "its descriptor is of less memory";
  } else if (seals < 0 || (seals & kLentSeals) != kLentSeals) {
    why = "its owner could still change it";
  }
  if (why.empty()) return absl::OkStatus();
  return Error(absl::StatusCode::kFailedPrecondition, "BASE_UNMAPPABLE",
               absl::StrCat("the base weights that the trainer lends cannot be mapped: ", why));
}

}  // namespace

SharedBaseMemory::SharedBaseMemory(int32_t ranges, const Sizes& sizes, Base base)
    : sizes_(sizes),
      rest_bytes_(RoundUpToPages(sizes.range - sizes.base)),
      base_(base),
      own_(memfd_create("base weights", MFD_CLOEXEC | MFD_ALLOW_SEALING)),
      ranges_with_rest_(ranges),
      has_rest_(static_cast<size_t>(ranges), true) {
  SYNCOPATE_CHECK(ranges > 0 && sizes.base % kPageBytes == 0 && sizes.base < sizes.range);
  if (own_.get() < 0 || ftruncate(own_.get(), sizes.base) != 0) throw std::bad_alloc();
  for (int32_t i = 0; i < ranges; ++i) {
    const auto size = static_cast<size_t>(sizes_.base + rest_bytes_);
    void* const range = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) throw std::bad_alloc();
    ranges_.push_back(static_cast<char*>(range));
  }
  // Memory that cannot be had is found here, and not at the first write, which would end the process.
  const absl::Status mapped = base == Base::kAlways ? Own() : MapBase(own_.get(), PROT_READ | PROT_WRITE);
  if (!mapped.ok()) throw std::bad_alloc();
}

SharedBaseMemory::~SharedBaseMemory() {
  for (char* range : ranges_) munmap(range, static_cast<size_t>(sizes_.base + rest_bytes_));
}

int64_t SharedBaseMemory::own_bytes() const {
  return (base_state_ == BaseState::kOwn ? sizes_.base : 0) + ranges_with_rest_ * (sizes_.range - sizes_.base);
}

absl::Status SharedBaseMemory::MapBase(int descriptor, int protection) {
  if (sizes_.base == 0) return absl::OkStatus();
  for (char* range : ranges_) {
    if (mmap(range, static_cast<size_t>(sizes_.base), protection, MAP_SHARED | MAP_FIXED, descriptor, 0) ==
        MAP_FAILED) {
      return MemoryError("mapping the base's memory");
    }
  }
  return absl::OkStatus();
}

absl::Status SharedBaseMemory::DropOwn() {
  if (sizes_.base > 0 && fallocate(own_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, sizes_.base) != 0) {
    return MemoryError("giving the base's memory back");
  }
  return absl::OkStatus();
}

absl::Status SharedBaseMemory::Release(std::optional<int32_t> kept) {
  SYNCOPATE_CHECK(!lent());
  for (size_t i = 0; i < ranges_.size(); ++i) {
    if (kept == static_cast<int32_t>(i) || !has_rest_[i]) continue;
    if (madvise(ranges_[i] + sizes_.base, static_cast<size_t>(rest_bytes_), MADV_DONTNEED) != 0) {
      return MemoryError("giving an adapter set's memory back");
    }
    has_rest_[i] = false;
    --ranges_with_rest_;
  }
  if (kept.has_value()) return absl::OkStatus();
  if (base_state_ == BaseState::kMapped) SYNCOPATE_RETURN_IF_ERROR(MapBase(own_.get(), PROT_READ | PROT_WRITE));
  if (base_state_ == BaseState::kOwn) SYNCOPATE_RETURN_IF_ERROR(DropOwn());
  base_state_ = BaseState::kNone;
  return absl::OkStatus();
}

absl::Status SharedBaseMemory::Restore() {
  if (base_ == Base::kAlways && base_state_ == BaseState::kNone) SYNCOPATE_RETURN_IF_ERROR(Own());
  has_rest_.assign(ranges_.size(), true);
  ranges_with_rest_ = static_cast<int32_t>(ranges_.size());
  return absl::OkStatus();
}

absl::StatusOr<SharedMemory> SharedBaseMemory::Lend() {
  if (lent()) return lent_;
  SYNCOPATE_CHECK(base_state_ == BaseState::kOwn);
  // This process's mappings can still write, which the seal does not prevent: they are made read-only themselves.
  for (char* range : ranges_) {
    if (sizes_.base > 0 && mprotect(range, static_cast<size_t>(sizes_.base), PROT_READ) != 0)
      return MemoryError("protecting the base");
  }
  if (fcntl(own_.get(), F_ADD_SEALS, kLentSeals) != 0) return MemoryError("sealing the base's memory");
  auto memory = std::make_shared<LentMemory>();
  const std::string random = RandomBytes(sizeof(memory->info.id));
  std::memcpy(&memory->info.id, random.data(), random.size());
  memory->info.chunks = {sizes_.base};
  memory->handles.emplace_back(fcntl(own_.get(), F_DUPFD_CLOEXEC, 0));
  if (!memory->handles.back().valid()) return MemoryError("copying the descriptor of the base's memory");
  lent_ = std::move(memory);
  return lent_;
}

absl::Status SharedBaseMemory::Map(LentMemory memory) {
  SYNCOPATE_CHECK(!lent());
  SYNCOPATE_RETURN_IF_ERROR(CheckLent(memory, sizes_.base));
  const absl::Status mapped = MapBase(memory.handles.front().get(), PROT_READ);
  if (!mapped.ok()) {
    // Some ranges may have the lent memory. Own() and Map() map all of them again.
    MapBase(own_.get(), PROT_READ | PROT_WRITE).IgnoreError();  // `mapped` has the error
    base_state_ = BaseState::kNone;
    return mapped;
  }
  const bool had_own = base_state_.exchange(BaseState::kMapped) == BaseState::kOwn;
  return had_own ? DropOwn() : absl::OkStatus();
}

absl::Status SharedBaseMemory::Own() {
  if (base_state_ == BaseState::kOwn) return absl::OkStatus();
  if (sizes_.base > 0 && posix_fallocate(own_.get(), 0, sizes_.base) != 0) {
    return Error(
        absl::StatusCode::kResourceExhausted, "OUT_OF_MEMORY",
        absl::StrCat("the base weights need ", sizes_.base >> 20, " MiB of host memory, which is not there now"));
  }
  SYNCOPATE_RETURN_IF_ERROR(MapBase(own_.get(), PROT_READ | PROT_WRITE));
  base_state_ = BaseState::kOwn;
  return absl::OkStatus();
}

}  // namespace syncopate::synchronizer
