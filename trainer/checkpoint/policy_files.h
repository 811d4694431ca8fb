#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/manifest.h"
#include "base/status.h"
#include "trainer/checkpoint/checkpoint_store.h"
#include "trainer/step/policy.h"

namespace syncopate::trainer {

// The two files that hold a policy in a checkpoint, both safetensors in float32:
//   model.safetensors      the parameters under their own names: what other tools read
//   optimizer.safetensors  "first_moment.<name>" and "second_moment.<name>"; metadata "updates"
inline constexpr char kModelFile[] = "model.safetensors";
inline constexpr char kOptimizerFile[] = "optimizer.safetensors";

// Contents that are written piece by piece from `state`'s arenas, which must stay as they are until the save is over.
std::map<std::string, CheckpointStore::Contents> PolicyFiles(const Manifest& manifest, const Policy::State& state);

// A policy read back: owns its arenas.
class RestoredPolicy {
 public:
  // DATA_LOSS, naming the tensor, if the files do not hold exactly the manifest's tensors (reason CHECKPOINT_MISMATCH)
  // or one of the parameters is not finite (reason NON_FINITE); INVALID_ARGUMENT (reason BAD_SAFETENSORS) if one is no
  // safetensors file.
  static absl::StatusOr<RestoredPolicy> Parse(const Manifest& manifest, const std::string& model_file,
                                              const std::string& optimizer_file);
  // Valid while this object lives.
  Policy::State state() const { return {parameters_.data(), first_moment_.data(), second_moment_.data(), updates_}; }

 private:
  std::vector<float> parameters_, first_moment_, second_moment_;  // arenas in wire order
  int64_t updates_ = 0;
};

}  // namespace syncopate::trainer
