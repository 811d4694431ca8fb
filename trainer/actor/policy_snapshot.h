#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/manifest.h"
#include "base/status.h"

namespace syncopate::trainer {

// The arenas that a resumed run needs for the same bits, beside the number of updates: float32, laid out by
// Policy::trained().
enum class PolicyPart : uint8_t { kParameters, kFirstMoment, kSecondMoment, kReference };
// The parts that updates change. kReference is the weights of a reference policy that the start of the run does not
// give; only snapshots and checkpoints of such a run contain it.
inline constexpr PolicyPart kPolicyParts[] = {PolicyPart::kParameters, PolicyPart::kFirstMoment,
                                              PolicyPart::kSecondMoment};
inline constexpr size_t kAllPolicyParts = std::size(kPolicyParts) + 1;

// A copy, in host memory, of one rank's part of a policy, or of its weights alone, at one moment. On a GPU the copying
// may go on while the next step computes. Immutable; may be read by any thread and outlive the policy.
struct PolicySnapshot {
  // Elements [begin, begin + count) of tensor `tensor` of the manifest, which lie at element `offset` of each arena.
  struct Piece {
    size_t tensor = 0;
    int64_t begin = 0;
    int64_t count = 0;
    int64_t offset = 0;
  };

  // Makes what is left of the copy, or waits for the thread that makes it, within a deadline; returns the device's
  // error. May be called on any thread. The policy's thread makes the copy before it changes the state, if no other
  // thread has.
  absl::Status FinishCopy() const {
    for (const std::function<absl::Status()>& finish : under_way) SYNCOPATE_RETURN_IF_ERROR(finish());
    return absl::OkStatus();
  }
  bool has_moments() const { return arenas[static_cast<size_t>(PolicyPart::kFirstMoment)] != nullptr; }
  bool has_reference() const { return arenas[static_cast<size_t>(PolicyPart::kReference)] != nullptr; }
  // For a part that was copied, after FinishCopy() has returned OK.
  absl::string_view Bytes(PolicyPart part, const Piece& piece) const {
    return {arenas[static_cast<size_t>(part)].get() + static_cast<size_t>(piece.offset) * sizeof(float),
            static_cast<size_t>(piece.count) * sizeof(float)};
  }

  Manifest manifest;  // of what is trained, of all ranks: the whole policy, or its adapters
  // For a policy of adapters: the text of adapter_config.json ("": all weights are trained), and the digest of their
  // base.
  std::string adapter_config = {};
  uint64_t base_digest = 0;
  int32_t rank = 0;
  int32_t world = 1;
  int64_t updates = 0;
  std::vector<Piece> pieces;                             // in the manifest's order; with one rank its tensors
  std::shared_ptr<const char> arenas[kAllPolicyParts];   // null: that part was not copied
  std::vector<std::function<absl::Status()>> under_way;  // the work of each part whose copy may be
};

// The source of a restored policy, such as the files of a checkpoint.
class PolicySource {
 public:
  virtual ~PolicySource() = default;
  // Hands elements [begin, begin + count) of tensor `index` of Policy::trained() to `use`: float32, row-major, in their
  // order, in pieces of whole numbers that are aligned to nothing. Reads no others.
  virtual void Read(PolicyPart part, size_t index, int64_t begin, int64_t count,
                    const std::function<void(absl::string_view)>& use) const = 0;
  virtual int64_t updates() const = 0;
  // Whether Read() has PolicyPart::kReference.
  virtual bool has_reference() const { return false; }
};

}  // namespace syncopate::trainer
