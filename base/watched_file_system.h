#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/file_system.h"
#include "base/mutex.h"

namespace syncopate {

// Passes every call on to another file system and records which calls are in progress. A system call cannot be given a
// deadline, so a thread that waits for a writing thread asks here, to tell a slow disk from one that does not answer.
// Thread-safe. Files that it has opened must not outlive it.
class WatchedFileSystem final : public FileSystem {
 public:
  // Both arguments must outlive this object.
  explicit WatchedFileSystem(FileSystem* files, const Clock* clock = Clock::Real()) : files_(files), clock_(clock) {}

  // DEADLINE_EXCEEDED (reason DISK_STUCK), naming call and path, if a call has been in progress for `most` or longer.
  // Does not block.
  absl::Status CheckCalls(absl::Duration most) const;

  absl::Status CreateDirs(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override;
  absl::StatusOr<int64_t> FileBytes(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<AppendFile>> OpenForAppend(const std::string& path, OpenMode mode) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status RemoveTree(const std::string& path) override;
  absl::Status SyncDir(const std::string& path) override;

 private:
  class Reading;
  class Appending;
  struct Call {
    const char* what;
    std::string path;
    absl::Time since;
  };
  // Returns the result of `work`; the call counts as in progress until `work` has returned.
  template <typename Work>
  auto Watch(const char* what, const std::string& path, const Work& work);

  FileSystem* const files_;
  const Clock* const clock_;
  mutable Mutex mutex_;
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Call> calls_ ABSL_GUARDED_BY(mutex_);  // in the order in which they began
};

}  // namespace syncopate
