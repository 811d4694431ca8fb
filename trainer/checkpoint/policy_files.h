#pragma once

#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/manifest.h"
#include "base/mapped_file.h"
#include "base/status.h"
#include "model/safetensors.h"
#include "trainer/checkpoint/checkpoint_manifest.h"
#include "trainer/checkpoint/checkpoint_store.h"
#include "trainer/step/policy.h"

namespace syncopate::trainer {

// The files of a policy in a checkpoint, all safetensors in float32. A trainer of one rank writes:
//   model.safetensors      the parameters under their own names: what other tools read
//   optimizer.safetensors  "first_moment.<name>" and "second_moment.<name>"; metadata "updates"
//   reference.safetensors  "reference.<name>", of a run whose reference policy is the policy at the end of its supervised
//                          steps, from then on
// A policy of adapters has adapter_model.safetensors instead of model.safetensors, whose metadata name the digest of
// their base, and adapter_config.json: a directory that PEFT can load. The base is in no checkpoint. With several ranks
// each writes its shard; rank R of N writes:
//   model-R-of-N.safetensors, optimizer-R-of-N.safetensors, reference-R-of-N.safetensors
//                          of each tensor one flat piece, named by the tensor, "@" and the piece's first element:
//                          "model.norm.weight@128". The pieces of all ranks are the whole, and do not overlap
std::string ModelFileName(int32_t rank, int32_t ranks, bool adapters = false);
std::string OptimizerFileName(int32_t rank, int32_t ranks);
std::string ReferenceFileName(int32_t rank, int32_t ranks);

// Contents of the files that a rank writes of a snapshot: parameters, moments unless the snapshot is of weights alone,
// and a reference if the snapshot has one; rank 0 writes adapter_config.json too. `go_on` is asked every few megabytes while they are written; its error
// ends that.
std::map<std::string, CheckpointStore::Contents> PolicyFiles(const std::shared_ptr<const PolicySnapshot>& snapshot,
                                                             const std::function<absl::Status()>& go_on = nullptr);

// The weights of a snapshot of one rank, named as the tensors are; each keeps a reference to the snapshot.
std::vector<model::TensorToWrite> WeightsToWrite(const std::shared_ptr<const PolicySnapshot>& snapshot);

// A policy in the files of a checkpoint, as views into them.
class SavedPolicy final : public PolicySource {
 public:
  struct RankFiles {
    absl::string_view model, optimizer;
  };
  // `manifest`: Policy::trained(). `ranks`: the files of all ranks, in order; they must not change while this object
  // exists. DATA_LOSS, naming the tensor, if the files do not contain exactly the manifest's tensors (reason
  // CHECKPOINT_MISMATCH) or, with `looks_at_numbers`, if a parameter is not finite (reason NON_FINITE);
  // INVALID_ARGUMENT (reason BAD_SAFETENSORS) if one is no safetensors file.
  static absl::StatusOr<SavedPolicy> Parse(const Manifest& manifest, const std::vector<RankFiles>& ranks,
                                           bool looks_at_numbers = true);
  // Parses weights alone: `models` are the files of all ranks. Nothing else may be read, and updates() is 0.
  static absl::StatusOr<SavedPolicy> ParseWeights(const Manifest& manifest,
                                                  const std::vector<absl::string_view>& models,
                                                  bool looks_at_numbers = true);

  // Adds the reference policy, from the files of all ranks. Errors as Parse().
  absl::Status AddReference(const Manifest& manifest, const std::vector<absl::string_view>& references,
                            bool looks_at_numbers = true);

  void Read(PolicyPart part, size_t index, int64_t begin, int64_t count,
            const std::function<void(absl::string_view)>& use) const override;
  int64_t updates() const override { return updates_; }
  bool has_reference() const override { return has_reference_; }
  // The base of the adapters that were saved; 0 if the file does not name it.
  uint64_t base_digest() const { return base_digest_; }

 private:
  struct Piece {
    int64_t begin = 0;  // of the tensor's elements
    absl::string_view numbers;
    int64_t end() const { return begin + static_cast<int64_t>(numbers.size() / sizeof(float)); }
  };
  using Pieces = std::vector<std::vector<Piece>>;  // of each tensor of the manifest, in order

  static absl::Status AddFile(const Manifest& manifest, const model::SafetensorsFile& file, const std::string& prefix,
                              bool is_whole, Pieces* pieces);
  static absl::Status CheckPieces(const Manifest& manifest, const std::string& prefix, Pieces* pieces);
  static absl::Status CheckFinite(const Manifest& manifest, const Pieces& parameters, const std::string& file);

  Pieces parts_[kAllPolicyParts];
  int64_t updates_ = 0;
  bool has_reference_ = false;
  uint64_t base_digest_ = 0;
};

// The files themselves, mapped, and the policy in them: pages are read as they are looked at.
struct MappedPolicy {
  std::vector<std::unique_ptr<MappedFile>> files;
  SavedPolicy policy;
};
// `map` opens one by its name; else as Parse(). A reference policy that `checkpoint` has is part of the result.
using FileMapper = std::function<absl::StatusOr<std::unique_ptr<MappedFile>>(const std::string& name)>;
absl::StatusOr<MappedPolicy> MapPolicy(const Manifest& manifest, const CheckpointManifest& checkpoint,
                                       const FileMapper& map, bool looks_at_numbers = true);
// The weights alone, as ParseWeights().
absl::StatusOr<MappedPolicy> MapWeights(const Manifest& manifest, int32_t ranks, const FileMapper& map);

}  // namespace syncopate::trainer
