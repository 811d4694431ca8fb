#include "trainer/checkpoint/policy_files.h"

#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/finite.h"
#include "base/reasons.h"

namespace syncopate::trainer {
namespace {

constexpr char kFirstMoment[] = "first_moment.";
constexpr char kSecondMoment[] = "second_moment.";
constexpr char kUpdates[] = "updates";

absl::Status Mismatch(const std::string& message) {
  return Error(absl::StatusCode::kDataLoss, "CHECKPOINT_MISMATCH",
               message + "; resume with the model section the checkpoint was made with");
}

CheckpointStore::Contents Safetensors(std::vector<model::TensorToWrite> tensors,
                                      std::map<std::string, std::string> metadata) {
  return [tensors = std::move(tensors), metadata = std::move(metadata)](const CheckpointStore::ByteSink& sink) {
    return model::StreamSafetensors(tensors, metadata, sink);
  };
}

// The manifest's tensors in `file`, where their names begin with `prefix`.
absl::StatusOr<std::vector<absl::string_view>> FindTensors(const Manifest& manifest, const model::SafetensorsFile& file,
                                                           const std::string& prefix) {
  std::vector<absl::string_view> found;
  for (const TensorSpec& spec : manifest.tensors()) {
    absl::StatusOr<model::StoredTensor> stored = file.Find(prefix + spec.name);
    if (!stored.ok()) return Mismatch(absl::StrCat("the checkpoint has no tensor ", prefix, spec.name));
    if (stored->dtype != model::ToStoredDType(spec.dtype) || stored->shape != spec.shape) {
      return Mismatch(absl::StrCat("tensor ", prefix, spec.name, " of the checkpoint has another shape or dtype"));
    }
    found.push_back(stored->data);
  }
  return found;
}

absl::Status CheckFinite(const Manifest& manifest, const std::vector<absl::string_view>& parameters) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    const TensorSpec& spec = manifest.tensors()[i];
    const std::optional<int64_t> bad = FindNonFinite(parameters[i].data(), spec.NumElements(), kFloat32Exponent);
    if (!bad.has_value()) continue;
    return Error(absl::StatusCode::kDataLoss, reason::kNonFinite,
                 absl::StrCat(kModelFile, ": element ", *bad, " of ", spec.name, " is not finite"));
  }
  return absl::OkStatus();
}

absl::Status CheckCount(const model::SafetensorsFile& file, size_t expected, const char* name) {
  if (file.tensors().size() == expected) return absl::OkStatus();
  return Mismatch(absl::StrCat(name, " holds ", file.tensors().size(), " tensors, the model has ", expected));
}

}  // namespace

std::vector<model::TensorToWrite> TensorsOfPolicy(const Policy& policy, PolicyPart part, const std::string& prefix) {
  std::vector<model::TensorToWrite> tensors;
  for (size_t i = 0; i < policy.manifest().tensors().size(); ++i) {
    const TensorSpec& spec = policy.manifest().tensors()[i];
    auto write = [&policy, part, i](const model::ByteSink& sink) { return policy.WriteTensor(part, i, sink); };
    tensors.push_back({prefix + spec.name, model::ToStoredDType(spec.dtype), spec.shape, std::move(write)});
  }
  return tensors;
}

std::map<std::string, CheckpointStore::Contents> PolicyFiles(const Policy& policy) {
  std::vector<model::TensorToWrite> moments = TensorsOfPolicy(policy, PolicyPart::kFirstMoment, kFirstMoment);
  for (model::TensorToWrite& tensor : TensorsOfPolicy(policy, PolicyPart::kSecondMoment, kSecondMoment)) {
    moments.push_back(std::move(tensor));
  }
  std::map<std::string, CheckpointStore::Contents> files;
  files[kModelFile] = Safetensors(TensorsOfPolicy(policy, PolicyPart::kParameters), {{"format", "pt"}});
  files[kOptimizerFile] = Safetensors(std::move(moments), {{kUpdates, absl::StrCat(policy.updates())}});
  return files;
}

absl::StatusOr<SavedPolicy> SavedPolicy::Parse(const Manifest& manifest, absl::string_view model_file,
                                               absl::string_view optimizer_file) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto parameters, model::SafetensorsFile::Parse(model_file));
  SYNCOPATE_ASSIGN_OR_RETURN(auto moments, model::SafetensorsFile::Parse(optimizer_file));
  SYNCOPATE_RETURN_IF_ERROR(CheckCount(parameters, manifest.tensors().size(), kModelFile));
  SYNCOPATE_RETURN_IF_ERROR(CheckCount(moments, 2 * manifest.tensors().size(), kOptimizerFile));
  SavedPolicy policy;
  auto& [values, first, second] = policy.tensors_;
  SYNCOPATE_ASSIGN_OR_RETURN(values, FindTensors(manifest, parameters, ""));
  SYNCOPATE_RETURN_IF_ERROR(CheckFinite(manifest, values));
  SYNCOPATE_ASSIGN_OR_RETURN(first, FindTensors(manifest, moments, kFirstMoment));
  SYNCOPATE_ASSIGN_OR_RETURN(second, FindTensors(manifest, moments, kSecondMoment));
  auto updates = moments.metadata().find(kUpdates);
  if (updates == moments.metadata().end() || !absl::SimpleAtoi(updates->second, &policy.updates_)) {
    return Mismatch(absl::StrCat(kOptimizerFile, " does not say how many updates were made"));
  }
  return policy;
}

}  // namespace syncopate::trainer
