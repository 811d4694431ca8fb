#include "trainer/checkpoint/export_checkpoint.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/file_system.h"
#include "base/mapped_file.h"
#include "base/reasons.h"
#include "base/sha256.h"
#include "model/hf_config.h"
#include "model/model_folder.h"
#include "trainer/checkpoint/checkpoint_manifest.h"
#include "trainer/checkpoint/policy_files.h"

namespace syncopate::trainer {
namespace {

absl::Status Damaged(const std::string& path, const std::string& what) {
  return Error(absl::StatusCode::kDataLoss, "CHECKPOINT_DAMAGED", absl::StrCat(path, " ", what));
}

absl::StatusOr<CheckpointManifest> ReadManifest(const std::string& checkpoint) {
  const std::string path = JoinPath(checkpoint, kCheckpointManifestName);
  const absl::StatusOr<std::string> text = ReadFile(FileSystem::Real(), path, kMaxCheckpointManifestBytes);
  if (absl::IsNotFound(text.status())) {
    return Error(absl::StatusCode::kNotFound, reason::kNoCheckpoint,
                 absl::StrCat(checkpoint, " is no checkpoint: it has no ", kCheckpointManifestName,
                              "; name a folder such as <run.dir>/checkpoints/e1-s20"));
  }
  SYNCOPATE_RETURN_IF_ERROR(text.status());
  absl::StatusOr<CheckpointManifest> manifest = ParseCheckpointManifest(*text);
  return manifest.ok() ? manifest : Annotate(manifest.status(), path);
}

// A file, after its size and digest have been compared with the manifest's.
absl::StatusOr<std::unique_ptr<MappedFile>> OpenVerified(const std::string& folder, const CheckpointStore::Files& files,
                                                         const std::string& name) {
  const std::string path = JoinPath(folder, name);
  const auto expected = files.find(name);
  if (expected == files.end()) return Damaged(path, "is not in the checkpoint's manifest");
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  if (static_cast<int64_t>(file->bytes().size()) != expected->second.bytes ||
      Sha256Hex(file->bytes()) != expected->second.sha256) {
    return Damaged(path, "is not what was saved; take another checkpoint");
  }
  return file;
}

absl::StatusOr<model::ExportedModel> ExportRanks(const std::string& folder, const CheckpointManifest& manifest,
                                                 const std::string& from, const std::string& to,
                                                 const model::ExportOptions& options) {
  SYNCOPATE_ASSIGN_OR_RETURN(const model::HfModel described, model::ReadHfConfig(from));
  SYNCOPATE_ASSIGN_OR_RETURN(const Manifest whole, model::MakeManifest(described.config, DType::kFloat32));
  SYNCOPATE_ASSIGN_OR_RETURN(const MappedPolicy saved, MapRankWeights(folder, whole, manifest.ranks, manifest.files));
  return model::ExportModel(TensorsOfRanks(whole, saved.policy), from, to, options);
}

}  // namespace

absl::StatusOr<MappedPolicy> MapRankWeights(const std::string& folder, const Manifest& manifest, int32_t ranks,
                                            const CheckpointStore::Files& files) {
  return MapWeights(manifest, ranks, [&](const std::string& name) { return OpenVerified(folder, files, name); });
}

std::vector<model::TensorToWrite> TensorsOfRanks(const Manifest& manifest, const SavedPolicy& policy) {
  std::vector<model::TensorToWrite> tensors;
  for (size_t i = 0; i < manifest.tensors().size(); ++i) {
    const TensorSpec& spec = manifest.tensors()[i];
    auto write = [&policy, i, count = spec.NumElements()](const model::ByteSink& sink) {
      absl::Status status;
      policy.Read(PolicyPart::kParameters, i, 0, count, [&](absl::string_view numbers) {
        if (status.ok()) status = sink(numbers);
      });
      return status;
    };
    tensors.push_back({spec.name, model::ToStoredDType(spec.dtype), spec.shape, std::move(write)});
  }
  return tensors;
}

absl::StatusOr<model::ExportedModel> ExportCheckpoint(const std::string& checkpoint, const std::string& description,
                                                      const std::string& to, const model::ExportOptions& options) {
  const std::string folder(absl::StripSuffix(checkpoint, "/"));
  const std::string from = !description.empty() ? description : JoinPath(ParentPath(ParentPath(folder)), "model");
  SYNCOPATE_ASSIGN_OR_RETURN(const CheckpointManifest manifest, ReadManifest(folder));
  if (!FileSystem::Real()->FileBytes(JoinPath(from, model::kHfConfigFile)).ok()) {
    return Error(absl::StatusCode::kNotFound, "NO_MODEL",
                 absl::StrCat(from, " has no ", model::kHfConfigFile,
                              ": only runs that began with model.path can be exported, and where the checkpoint does "
                              "not lie in its run's directory, the folder with ",
                              model::kHfConfigFile, " must be named"));
  }
  if (manifest.ranks > 1) return ExportRanks(folder, manifest, from, to, options);
  SYNCOPATE_ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file,
                             OpenVerified(folder, manifest.files, ModelFileName(0, 1)));
  SYNCOPATE_ASSIGN_OR_RETURN(const model::SafetensorsFile weights, model::SafetensorsFile::Parse(file->bytes()));
  return model::ExportModel(model::ToWrite(weights.tensors()), from, to, options);
}

}  // namespace syncopate::trainer
