#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "base/watched_file_system.h"
#include "trainer/actor/policy_snapshot.h"
#include "trainer/checkpoint/checkpoint_store.h"
#include "trainer/checkpoint/save_thread.h"

namespace syncopate::trainer {

// Writes one rank's shard of a policy while further steps are made, on every rank but rank 0. Rank 0 has made the
// folder and uses it once all ranks have written; before that it is no checkpoint and no export. Called by one thread.
class ShardSaver {
 public:
  // From the thread that writes: what was written into `folder`, or why it could not be.
  using Tell = std::function<void(const std::string& folder, const absl::StatusOr<CheckpointStore::Files>& written)>;

  // Folders are of `root`; `files` outlives this.
  ShardSaver(FileSystem* files, std::string root, Tell tell, absl::Duration disk_deadline = kDiskDeadline)
      : files_(std::make_unique<WatchedFileSystem>(files)),
        root_(std::move(root)),
        tell_(std::move(tell)),
        disk_deadline_(disk_deadline) {}

  // Returns at once. A snapshot that could not be taken is told as any other error.
  void Save(const std::string& folder, absl::StatusOr<std::shared_ptr<const PolicySnapshot>> snapshot);
  // Gives up the files that are being written; `done` gets an error.
  void Abort() { aborted_.store(true); }
  // Waits until all files are written and their snapshots are released. DEADLINE_EXCEEDED (reason DISK_STUCK), naming
  // the path, if the disk does not answer: the thread that writes may then be blocked for ever.
  absl::Status Wait() {
    return thread_.Wait([this] { return files_->CheckCalls(disk_deadline_); });
  }

 private:
  absl::StatusOr<CheckpointStore::Files> Write(const std::string& folder,
                                               const std::shared_ptr<const PolicySnapshot>& snapshot) const;

  const std::unique_ptr<WatchedFileSystem> files_;
  const std::string root_;
  const Tell tell_;
  const absl::Duration disk_deadline_;
  std::atomic<bool> aborted_ = false;
  SaveThread thread_;  // last: it uses all of the above
};

}  // namespace syncopate::trainer
