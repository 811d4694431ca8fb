#include "trainer/checkpoint/export_store.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "model/adapter_files.h"
#include "trainer/checkpoint/export_checkpoint.h"
#include "trainer/checkpoint/policy_files.h"
#include "trainer/checkpoint/temporary_folders.h"

namespace syncopate::trainer {
namespace {

constexpr char kModelFolder[] = "model";  // in the .tmp folder

// Whether `folder` has what other ranks have written.
absl::Status CheckShared(FileSystem* files, const std::string& folder, const CheckpointStore::Files& written) {
  for (const auto& [name, file] : written) {
    SYNCOPATE_RETURN_IF_ERROR(CheckFileName(name));
    const absl::StatusOr<int64_t> bytes = files->FileBytes(JoinPath(folder, name));
    if (bytes.ok() && *bytes == file.bytes) continue;
    return Error(absl::StatusCode::kFailedPrecondition, "FOLDER_NOT_SHARED",
                 absl::StrCat(name, ", which another trainer rank has written, is not in ", folder,
                              "; run.dir must be the same folder for all ranks"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ExportStore>> ExportStore::Open(FileSystem* files, Options options) {
  std::unique_ptr<ExportStore> store(new ExportStore(files, std::move(options)));
  SYNCOPATE_RETURN_IF_ERROR(RemoveTemporaryFolders(store->files_, store->options_.root));
  return store;
}

absl::StatusOr<std::string> ExportStore::BeginFolder(const PolicyVersion& version) {
  const std::string name = NewTemporaryName(version.ToString());
  SYNCOPATE_RETURN_IF_ERROR(files_->CreateDirs(JoinPath(options_.root, name)));
  return name;
}

absl::StatusOr<model::ExportedModel> ExportStore::Write(Request request) {
  const std::string folder =
      JoinPath(options_.root, request.folder.empty() ? NewTemporaryName(request.name) : request.folder);
  absl::StatusOr<model::ExportedModel> written = WriteInto(request, folder);
  const absl::Status removed = files_->RemoveTree(folder);
  if (!removed.ok()) SYNCOPATE_LOG(kWarning, "%s stays until the next start: %s", folder, removed.message());
  return written;
}

absl::StatusOr<model::ExportedModel> ExportStore::WriteInto(Request& request, const std::string& folder) {
  absl::Status copied = request.snapshot.status();
  // First of all, as the update of the step under way waits for the copy.
  if (copied.ok()) copied = (*request.snapshot)->FinishCopy();
  if (request.await_others == nullptr) {
    SYNCOPATE_RETURN_IF_ERROR(copied);
    return WriteFolder(request, folder, AdaptersIn(**request.snapshot), WeightsToWrite(*request.snapshot));
  }
  absl::StatusOr<CheckpointStore::Files> mine =
      copied.ok() ? CheckpointStore::WriteFiles(files_, folder, PolicyFiles(*request.snapshot)) : copied;
  // Whatever became of it: they write into the folder until this returns.
  absl::StatusOr<CheckpointStore::Files> all = request.await_others();
  SYNCOPATE_RETURN_IF_ERROR(mine.status());
  SYNCOPATE_RETURN_IF_ERROR(all.status());
  SYNCOPATE_RETURN_IF_ERROR(CheckShared(files_, folder, *all));
  all->insert(mine->begin(), mine->end());
  const Manifest manifest = (*request.snapshot)->manifest;
  const Adapters adapters = AdaptersIn(**request.snapshot);
  const int32_t ranks = (*request.snapshot)->world;
  request.snapshot = absl::UnavailableError("written");  // its memory is free for the next copy
  SYNCOPATE_ASSIGN_OR_RETURN(const MappedPolicy whole, MapRankWeights(folder, manifest, ranks, *all));
  return WriteFolder(request, folder, adapters, TensorsOfRanks(manifest, whole.policy));
}

ExportStore::Adapters ExportStore::AdaptersIn(const PolicySnapshot& snapshot) {
  return {snapshot.adapter_config, snapshot.base_digest};
}

absl::StatusOr<model::ExportedModel> ExportStore::WriteFolder(const Request& request, const std::string& folder,
                                                              const Adapters& adapters,
                                                              const std::vector<model::TensorToWrite>& tensors) {
  model::ExportOptions options = request.options;
  options.files = files_;
  options.partial = JoinPath(folder, kModelFolder);
  if (!adapters.config.empty()) {
    SYNCOPATE_ASSIGN_OR_RETURN(const int64_t bytes, model::ExportAdapter(tensors, adapters.config, adapters.base_digest,
                                                                         GetPath(request.name), options));
    return model::ExportedModel{.files = 1, .bytes = bytes};
  }
  return options_.write(tensors, options_.description, GetPath(request.name), options);
}

}  // namespace syncopate::trainer
