#include "trainer/checkpoint/policy_files.h"

#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "model/safetensors.h"
#include "synchronizer/transport/finite_check.h"

namespace syncopate::trainer {
namespace {

constexpr char kFirstMoment[] = "first_moment.";
constexpr char kSecondMoment[] = "second_moment.";
constexpr char kUpdates[] = "updates";

absl::Status Mismatch(const std::string& message) {
  return Error(absl::StatusCode::kDataLoss, "CHECKPOINT_MISMATCH",
               message + "; resume with the model section the checkpoint was made with");
}

// Views of an arena's tensors, named with `prefix`.
void AppendTensors(const Manifest& manifest, const std::string& prefix, const void* arena,
                   std::vector<model::StoredTensor>& tensors) {
  for (model::StoredTensor& tensor : model::TensorsOfArena(manifest, arena)) {
    tensor.name = prefix + tensor.name;
    tensors.push_back(std::move(tensor));
  }
}

CheckpointStore::Contents Safetensors(std::vector<model::StoredTensor> tensors,
                                      std::map<std::string, std::string> metadata) {
  return [tensors = std::move(tensors), metadata = std::move(metadata)](const CheckpointStore::ByteSink& sink) {
    return model::WriteSafetensors(tensors, metadata, sink);
  };
}

// Copies the named tensors of `file` into a new arena.
absl::StatusOr<std::vector<float>> ReadArena(const Manifest& manifest, const model::SafetensorsFile& file,
                                             const std::string& prefix) {
  std::vector<float> arena(static_cast<size_t>(manifest.arena_bytes()) / sizeof(float), 0.0f);
  for (size_t i = 0; i < manifest.tensors().size(); ++i) {
    const TensorSpec& spec = manifest.tensors()[i];
    absl::StatusOr<model::StoredTensor> stored = file.Find(prefix + spec.name);
    if (!stored.ok()) return Mismatch(absl::StrCat("the checkpoint has no tensor ", prefix, spec.name));
    if (stored->dtype != model::ToStoredDType(spec.dtype) || stored->shape != spec.shape) {
      return Mismatch(absl::StrCat("tensor ", prefix, spec.name, " of the checkpoint has another shape or dtype"));
    }
    std::memcpy(arena.data() + manifest.ranges()[i].begin / sizeof(float), stored->data.data(), stored->data.size());
  }
  return arena;
}

absl::Status CheckCount(const model::SafetensorsFile& file, size_t expected, const char* name) {
  if (file.tensors().size() == expected) return absl::OkStatus();
  return Mismatch(absl::StrCat(name, " holds ", file.tensors().size(), " tensors, the model has ", expected));
}

}  // namespace

std::map<std::string, CheckpointStore::Contents> PolicyFiles(const Manifest& manifest, const Policy::State& state) {
  std::vector<model::StoredTensor> parameters, moments;
  AppendTensors(manifest, "", state.parameters, parameters);
  AppendTensors(manifest, kFirstMoment, state.first_moment, moments);
  AppendTensors(manifest, kSecondMoment, state.second_moment, moments);
  std::map<std::string, CheckpointStore::Contents> files;
  files[kModelFile] = Safetensors(std::move(parameters), {{"format", "pt"}});
  files[kOptimizerFile] = Safetensors(std::move(moments), {{kUpdates, absl::StrCat(state.updates)}});
  return files;
}

absl::StatusOr<RestoredPolicy> RestoredPolicy::Parse(const Manifest& manifest, const std::string& model_file,
                                                     const std::string& optimizer_file) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto parameters, model::SafetensorsFile::Parse(model_file));
  SYNCOPATE_ASSIGN_OR_RETURN(auto moments, model::SafetensorsFile::Parse(optimizer_file));
  SYNCOPATE_RETURN_IF_ERROR(CheckCount(parameters, manifest.tensors().size(), kModelFile));
  SYNCOPATE_RETURN_IF_ERROR(CheckCount(moments, 2 * manifest.tensors().size(), kOptimizerFile));
  RestoredPolicy policy;
  SYNCOPATE_ASSIGN_OR_RETURN(policy.parameters_, ReadArena(manifest, parameters, ""));
  const char* arena = reinterpret_cast<const char*>(policy.parameters_.data());
  SYNCOPATE_RETURN_IF_ERROR(Annotate(synchronizer::CheckFinite(manifest, arena), kModelFile));
  SYNCOPATE_ASSIGN_OR_RETURN(policy.first_moment_, ReadArena(manifest, moments, kFirstMoment));
  SYNCOPATE_ASSIGN_OR_RETURN(policy.second_moment_, ReadArena(manifest, moments, kSecondMoment));
  auto updates = moments.metadata().find(kUpdates);
  if (updates == moments.metadata().end() || !absl::SimpleAtoi(updates->second, &policy.updates_)) {
    return Mismatch(absl::StrCat(kOptimizerFile, " does not say how many updates were made"));
  }
  return policy;
}

}  // namespace syncopate::trainer
