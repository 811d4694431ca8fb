#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/status.h"
#include "trainer/memory/memory_figures.h"
#include "trainer/memory/state_arena.h"

namespace syncopate::trainer {

// Work that belongs to the moves of a part, for what is derived from its arenas. Its time counts as part of the move;
// null: nothing to do.
struct StateHooks {
  std::function<absl::Status()> before_offload = nullptr;  // its error leaves the part where it is
  std::function<void()> after_load = nullptr;              // the arenas are there
};

// Arenas of a policy's state that are on the device together or not at all, and the cost of moving them. Used by the
// step thread alone.
class StatePart {
 public:
  // `arenas` are borrowed; one that is null stands for memory that stays on the device, all of which is `fixed_bytes`.
  StatePart(const std::vector<StateArena*>& arenas, int64_t fixed_bytes, StateHooks hooks = {});

  // Move all arenas; no effect if they are there already. FAILED_PRECONDITION (reason NOT_MOVABLE) if some memory
  // cannot leave the device. After an error of StateArena some arenas may have moved: repeat the call.
  absl::Status Offload();
  absl::Status Load();
  bool on_device() const { return on_device_; }
  int64_t device_bytes() const;
  int64_t bytes() const;  // what device_bytes() is while the part is on the device
  // Returns the cost of Offload() and Load() since the last TakeMoves(): all exactly 0 if nothing moved.
  StateMoves TakeMoves();
  const StateMoves& moves() const { return moves_; }

 private:
  std::vector<StateArena*> arenas_;
  const int64_t fixed_bytes_;
  const StateHooks hooks_;
  bool movable_ = true;
  bool on_device_ = true;
  StateMoves moves_;
};

}  // namespace syncopate::trainer
