#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/status.h"
#include "trainer/memory/memory_figures.h"
#include "trainer/memory/state_arena.h"

namespace syncopate::trainer {

// What goes and comes with a part's arenas. Each counts as a part of the move; null: nothing to do.
struct StateHooks {
  std::function<absl::Status()> before_offload = nullptr;  // its error leaves the part where it is
  std::function<void()> after_load = nullptr;              // the arenas are there
};

// Arenas of a policy's state that are on the device together or not at all, and what moving them took. Of the step thread.
class StatePart {
 public:
  // `arenas` are borrowed; one that is null stands for memory that stays on the device, all of which is `fixed_bytes`.
  StatePart(const std::vector<StateArena*>& arenas, int64_t fixed_bytes, StateHooks hooks = {});

  // Nothing if it was done. FAILED_PRECONDITION (reason NOT_MOVABLE) if some memory stays; else errors of StateArena, after
  // which the part is where it was, or in the middle: the same call may be made again.
  absl::Status Offload();
  absl::Status Load();
  bool on_device() const { return on_device_; }
  int64_t device_bytes() const;
  // What Offload() and Load() took since this was asked last: 0 and exactly 0.0 if they had nothing to do.
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
