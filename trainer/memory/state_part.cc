#include "trainer/memory/state_part.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace syncopate::trainer {
namespace {

double SecondsSince(absl::Time begin) { return absl::ToDoubleSeconds(Clock::Real()->Now() - begin); }

}  // namespace

StatePart::StatePart(const std::vector<StateArena*>& arenas, int64_t fixed_bytes, StateHooks hooks)
    : fixed_bytes_(fixed_bytes), hooks_(std::move(hooks)) {
  movable_ = std::count(arenas.begin(), arenas.end(), nullptr) == 0;
  if (movable_) arenas_ = arenas;
}

absl::Status StatePart::Offload() {
  if (!on_device_) return absl::OkStatus();
  if (!movable_) {
    return Error(absl::StatusCode::kFailedPrecondition, "NOT_MOVABLE",
                 "this policy's state is in memory of its device's allocator, which stays where it is");
  }
  const absl::Time begin = Clock::Real()->Now();
  if (hooks_.before_offload != nullptr) SYNCOPATE_RETURN_IF_ERROR(hooks_.before_offload());
  for (StateArena* arena : arenas_) {
    SYNCOPATE_ASSIGN_OR_RETURN(const int64_t copied, arena->Offload());
    moves_.bytes += copied;
  }
  on_device_ = false;
  moves_.offload_seconds += SecondsSince(begin);
  return absl::OkStatus();
}

absl::Status StatePart::Load() {
  if (on_device_) return absl::OkStatus();
  const absl::Time begin = Clock::Real()->Now();
  for (StateArena* arena : arenas_) {
    SYNCOPATE_ASSIGN_OR_RETURN(const int64_t copied, arena->Load());
    moves_.bytes += copied;
  }
  on_device_ = true;
  if (hooks_.after_load != nullptr) hooks_.after_load();
  moves_.load_seconds += SecondsSince(begin);
  return absl::OkStatus();
}

int64_t StatePart::device_bytes() const {
  if (!movable_) return fixed_bytes_;
  int64_t bytes = 0;
  for (const StateArena* arena : arenas_) bytes += arena->device_bytes();
  return bytes;
}

int64_t StatePart::bytes() const {
  if (!movable_) return fixed_bytes_;
  int64_t bytes = 0;
  for (const StateArena* arena : arenas_) bytes += arena->bytes();
  return bytes;
}

StateMoves StatePart::TakeMoves() { return std::exchange(moves_, {}); }

}  // namespace syncopate::trainer
