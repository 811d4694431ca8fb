#pragma once

#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/manifest.h"
#include "base/status.h"
#include "model/safetensors.h"
#include "trainer/checkpoint/checkpoint_store.h"
#include "trainer/step/policy.h"

namespace syncopate::trainer {

// The two files that hold a policy in a checkpoint, both safetensors in float32:
//   model.safetensors      the parameters under their own names: what other tools read
//   optimizer.safetensors  "first_moment.<name>" and "second_moment.<name>"; metadata "updates"
inline constexpr char kModelFile[] = "model.safetensors";
inline constexpr char kOptimizerFile[] = "optimizer.safetensors";

// The tensors of a part, named `prefix` and their names, for a file that is written while they are read: `policy` must
// live, and stay as it is, until then.
std::vector<model::TensorToWrite> TensorsOfPolicy(const Policy& policy, PolicyPart part,
                                                  const std::string& prefix = "");

// Contents of both files, on the same terms. No copy of them is ever held.
std::map<std::string, CheckpointStore::Contents> PolicyFiles(const Policy& policy);

// A policy in the two files of a checkpoint, as views into them.
class SavedPolicy final : public PolicySource {
 public:
  // Both files must stay as they are while this lives. DATA_LOSS, naming the tensor, if they do not hold exactly the
  // manifest's tensors (reason CHECKPOINT_MISMATCH) or one of the parameters is not finite (reason NON_FINITE);
  // INVALID_ARGUMENT (reason BAD_SAFETENSORS) if one is no safetensors file.
  static absl::StatusOr<SavedPolicy> Parse(const Manifest& manifest, absl::string_view model_file,
                                           absl::string_view optimizer_file);

  absl::string_view Tensor(PolicyPart part, size_t index) const override {
    return tensors_[static_cast<size_t>(part)][index];
  }
  int64_t updates() const override { return updates_; }

 private:
  std::vector<absl::string_view> tensors_[std::size(kPolicyParts)];  // of each part, in the manifest's order
  int64_t updates_ = 0;
};

}  // namespace syncopate::trainer
