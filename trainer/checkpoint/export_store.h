#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/file_system.h"
#include "base/policy_version.h"
#include "base/status.h"
#include "base/watched_file_system.h"
#include "model/model_export.h"
#include "trainer/actor/policy_snapshot.h"
#include "trainer/checkpoint/checkpoint_store.h"

namespace syncopate::trainer {

// The models that a run in progress writes for others, in one folder:
//
//   <root>/<name>/    a Hugging Face model directory; of a run that trains adapters a PEFT directory of these alone
//   <root>/.tmp-.../  one that is being written: the files of the ranks, and the directory before it gets its name
//
// So under its name an export is whole or absent. Every call may block for the disk. One thread at a time, but for
// CheckDisk().
class ExportStore {
 public:
  // Writes a model directory, as model::ExportModel.
  using ModelWriter = std::function<absl::StatusOr<model::ExportedModel>(
      const std::vector<model::TensorToWrite>& tensors, const std::string& description, const std::string& folder,
      const model::ExportOptions& options)>;
  struct Options {
    std::string root = {};
    std::string description = {};  // the folder with the model's config.json and tokenizer files
    absl::Duration disk_deadline = kDiskDeadline;
    ModelWriter write = model::ExportModel;
  };
  struct Request {
    std::string name;         // of the folder, as CheckFileName wants it
    std::string folder = {};  // what BeginFolder() gave; empty: one is made
    model::ExportOptions options = {};
    // The weights of this rank; an error: other ranks write theirs and are waited for even so.
    absl::StatusOr<std::shared_ptr<const PolicySnapshot>> snapshot;
    // Set with several ranks: as CheckpointStore::SaveRequest::await_others.
    std::function<absl::StatusOr<CheckpointStore::Files>()> await_others = nullptr;
  };

  // Removes what interrupted exports left. `files` must outlive the store.
  static absl::StatusOr<std::unique_ptr<ExportStore>> Open(FileSystem* files, Options options);

  // Makes an empty .tmp folder for one Write(); its name in root().
  absl::StatusOr<std::string> BeginFolder(const PolicyVersion& version);
  // Writes an export; durable when this returns OK. With several ranks each has written its weights into the folder,
  // and the model directory is made of these files. Whatever comes of it, the .tmp folder is gone. Errors of
  // model::ExportModel, of await_others, of the snapshot and of the disk; FAILED_PRECONDITION (reason
  // FOLDER_NOT_SHARED) if what another rank has written is not here.
  absl::StatusOr<model::ExportedModel> Write(Request request);

  // Checks the disk as CheckpointStore::CheckDisk does.
  absl::Status CheckDisk() const { return watched_->CheckCalls(options_.disk_deadline); }
  std::string GetPath(const std::string& name) const { return JoinPath(options_.root, name); }

 private:
  ExportStore(FileSystem* files, Options options)
      : watched_(std::make_unique<WatchedFileSystem>(files)), files_(watched_.get()), options_(std::move(options)) {}
  absl::StatusOr<model::ExportedModel> WriteInto(Request& request, const std::string& folder);
  // What goes with adapters; an empty `config`: all weights are trained.
  struct Adapters {
    std::string config;
    uint64_t base_digest = 0;
  };
  static Adapters AdaptersIn(const PolicySnapshot& snapshot);
  absl::StatusOr<model::ExportedModel> WriteFolder(const Request& request, const std::string& folder,
                                                   const Adapters& adapters,
                                                   const std::vector<model::TensorToWrite>& tensors);

  const std::unique_ptr<WatchedFileSystem> watched_;
  FileSystem* const files_;  // that one
  const Options options_;
};

}  // namespace syncopate::trainer
