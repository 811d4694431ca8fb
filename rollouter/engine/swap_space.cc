#include "rollouter/engine/swap_space.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate::rollouter {

absl::StatusOr<SwapSpace> SwapSpace::Take(int64_t bytes) {
  SwapSpace space;
  if (bytes == 0) return space;
  // Not operator new: a mapping is refused if the host could never back it, and unused pages cost nothing.
  void* const data =
      mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return Error(absl::StatusCode::kResourceExhausted, "OUT_OF_MEMORY",
                 absl::StrCat("the host has no ", bytes >> 20,
                              " MiB for keys and values of preempted answers: lower rollout.host_kv_memory (",
                              std::strerror(errno), ")"));
  }
  space.data_ = data;
  space.bytes_ = bytes;
  return space;
}

SwapSpace::~SwapSpace() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(bytes_));
}

}  // namespace syncopate::rollouter
