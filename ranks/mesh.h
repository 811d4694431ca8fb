#pragma once

#include <array>
#include <cstdint>

#include "ranks/communicator.h"

namespace syncopate {

// A world of ranks as named axes: along each axis a rank computes together with the ranks that differ from it in that
// place alone, over a communicator of their own. The world is the product of the axes. Borrows the communicators.
// Copyable.
class Mesh {
 public:
  enum class Axis : uint8_t {
    kShard,  // ranks that together store one copy of the policy's state and divide each batch (ZeRO-3, FSDP)
  };
  static constexpr int kAxes = 1;

  // One process by itself.
  Mesh() = default;
  // One axis of several ranks. Implicit: a world of one axis is its communicator.
  Mesh(Communicator& shard) : axes_{&shard} {}  // NOLINT(google-explicit-constructor)

  // The ranks along that axis; an axis that was given no communicator has this rank alone.
  Communicator& along(Axis axis) const {
    static SingleRank single;  // has no state
    Communicator* const given = axes_[static_cast<size_t>(axis)];
    return given == nullptr ? single : *given;
  }
  int32_t rank() const { return along(Axis::kShard).rank(); }
  int32_t world() const { return along(Axis::kShard).world(); }

 private:
  std::array<Communicator*, kAxes> axes_ = {};
};

}  // namespace syncopate
