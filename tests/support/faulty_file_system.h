#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "base/file_system.h"
#include "base/mutex.h"

namespace syncopate::testing {

// A disk in memory that fails on demand. It keeps what would survive a power cut apart from what running programs see:
// file contents become durable by AppendFile::Sync, names by SyncDir of their folder. Thread-safe.
//
// Operations are the calls that change something or sync: CreateDirs, OpenForAppend, Append, Sync, Truncate, Rename,
// RemoveTree, SyncDir. They are numbered from 0; operations() counts them.
class FaultyFileSystem final : public FileSystem {
 public:
  enum class Fault { kIoError, kNoSpace, kPermission };
  enum class Survives {
    kEverything,  // the process died and the machine did not: everything survives
    kSynced,      // power was lost: what was not synced is gone
    kSome,        // power was lost: a part of what was not synced got to the disk, torn and in any order
  };

  FaultyFileSystem();
  ~FaultyFileSystem() override;

  // Operations [first, first + count) fail with `fault`. A failing Append writes half of its bytes first. A failing
  // Sync drops what it should have written: no later Sync brings it to the disk.
  void FailOperations(int64_t first, int64_t count, Fault fault);
  // Operation `number` is interrupted half done; it and every later call fail until Restart.
  void CrashAtOperation(int64_t number);
  // The machine restarts. Files that were open before stay invalid. `seed` draws what survives under kSome.
  void Restart(Survives survives, uint64_t seed = 0);
  // The number of bytes that all files together may have. An Append that does not fit writes the part that fits and
  // fails with NO_SPACE.
  void SetCapacity(int64_t bytes);
  int64_t operations() const;
  // While this is set, an operation that begins does not return until it is reset, or until kLongestHold has passed.
  void HoldOperations(bool hold);
  static constexpr absl::Duration kLongestHold = absl::Seconds(60);

  // Damages a file without the knowledge of the code that has it open; the damage is durable at once.
  absl::Status FlipBits(const std::string& path, int64_t offset, uint8_t mask);
  absl::Status CutFile(const std::string& path, int64_t bytes);
  absl::Status PutFile(const std::string& path, const std::string& contents);

  absl::Status CreateDirs(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override;
  absl::StatusOr<int64_t> FileBytes(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<AppendFile>> OpenForAppend(const std::string& path, OpenMode mode) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status RemoveTree(const std::string& path) override;
  absl::Status SyncDir(const std::string& path) override;

 private:
  struct Node;
  class ReadHandle;
  class AppendHandle;
  using NodePtr = std::shared_ptr<Node>;
  using Children = std::map<std::string, NodePtr>;

  enum class Outcome { kGood, kFail, kCrash };
  struct Verdict {
    Outcome outcome = Outcome::kGood;
    absl::Status status;
  };

  // Counts one operation and decides whether it fails.
  Verdict Begin(absl::string_view operation, const std::string& path) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Alive(const std::string& path) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  NodePtr Find(const std::string& path) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<NodePtr> FindFile(const std::string& path) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status AppendTo(Node* node, const std::string& path, absl::string_view data, int64_t life);
  absl::Status SyncFile(Node* node, const std::string& path, int64_t life);
  absl::Status TruncateTo(Node* node, const std::string& path, int64_t bytes, int64_t life);
  int64_t UsedBytes(const Node& node) const;

  mutable Mutex mutex_;
  bool is_held_ ABSL_GUARDED_BY(mutex_) = false;
  NodePtr root_ ABSL_GUARDED_BY(mutex_);
  int64_t operations_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t fail_first_ ABSL_GUARDED_BY(mutex_) = -1;
  int64_t fail_count_ ABSL_GUARDED_BY(mutex_) = 0;
  int fail_errno_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t crash_at_ ABSL_GUARDED_BY(mutex_) = -1;
  bool crashed_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t life_ ABSL_GUARDED_BY(mutex_) = 0;  // incremented by each Restart; handles of earlier values are invalid
  int64_t capacity_bytes_ ABSL_GUARDED_BY(mutex_) = int64_t{1} << 40;
};

}  // namespace syncopate::testing
