#include "trainer/checkpoint/export_checkpoint.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/file_system.h"
#include "base/mapped_file.h"
#include "base/reasons.h"
#include "base/sha256.h"
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

// The weights, after their size and digest have been compared with the manifest's.
absl::StatusOr<std::unique_ptr<MappedFile>> OpenVerified(const std::string& checkpoint,
                                                         const CheckpointManifest& manifest) {
  const std::string path = JoinPath(checkpoint, kModelFile);
  const auto expected = manifest.files.find(kModelFile);
  if (expected == manifest.files.end()) return Damaged(path, "is not in the checkpoint's manifest");
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  if (static_cast<int64_t>(file->bytes().size()) != expected->second.bytes ||
      Sha256Hex(file->bytes()) != expected->second.sha256) {
    return Damaged(path, "is not what was saved; take another checkpoint");
  }
  return file;
}

}  // namespace

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
  SYNCOPATE_ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file, OpenVerified(folder, manifest));
  SYNCOPATE_ASSIGN_OR_RETURN(const model::SafetensorsFile weights, model::SafetensorsFile::Parse(file->bytes()));
  return model::ExportModel(model::ToWrite(weights.tensors()), from, to, options);
}

}  // namespace syncopate::trainer
