#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/file_system.h"
#include "base/mapped_file.h"
#include "base/policy_version.h"
#include "base/status.h"
#include "base/watched_file_system.h"
#include "trainer/checkpoint/checkpoint_manifest.h"

namespace syncopate::trainer {

// How long one call to the disk may take before a wait for a checkpoint ends with DISK_STUCK. The longest call makes a
// gigabyte durable: a disk that takes longer does not answer.
inline constexpr absl::Duration kDiskDeadline = absl::Minutes(5);

// The checkpoints of a run, in one folder:
//
//   <root>/e<epoch>-s<step>/<file> ...                   one complete checkpoint
//   <root>/e<epoch>-s<step>/manifest.json                sizes and SHA-256 of its files (checkpoint_manifest.h)
//   <root>/best/                                         one that is kept for export alone (best_checkpoint.h)
//   <root>/.tmp-...                                      one being written or removed; no checkpoint
//
// A checkpoint is written in a .tmp folder and renamed, so under its name it is whole or absent. The store never
// deletes an old one before newer ones have been read back and verified. Of several ranks each writes files of its own
// into the .tmp folder (WriteFiles), and the one that has the store the manifest, last. Not thread-safe: one caller at
// a time, but for CheckDisk(). Every other call may block for the disk.
class CheckpointStore {
 public:
  // Takes the next bytes of a file; an error is the disk's, and the writer returns it.
  using ByteSink = std::function<absl::Status(absl::string_view bytes)>;
  // A file's contents: its bytes, or a function that writes them piece by piece.
  using Contents = std::variant<std::string, std::function<absl::Status(const ByteSink& sink)>>;

  using Files = std::map<std::string, CheckpointFile>;  // by name

  struct SaveRequest {
    PolicyVersion version;
    std::map<std::string, Contents> files;        // by name; names as CheckFileName wants them, not manifest.json
    std::map<std::string, std::string> metadata;  // free-form, UTF-8
    // What BeginFolder() gave; empty: one is made.
    std::string folder = {};
    // Set with several ranks: waits until the other ranks have written their files into that folder and returns the
    // files. Called once in each Save(), even after an error, as the other ranks must be done before the folder can be
    // removed.
    int32_t ranks = 1;
    std::function<absl::StatusOr<Files>()> await_others = nullptr;
    // Called when everything is durable and only the rename is left. An error gives the checkpoint up: here the
    // trainer looks a last time whether its epoch is still the newest.
    std::function<absl::Status()> last_look;
  };

  struct Skipped {
    std::string name;  // of the checkpoint
    absl::Status why;  // names the file and what is wrong with it
  };

  struct Latest {
    CheckpointManifest checkpoint;
    std::vector<Skipped> skipped;  // higher ones that do not verify, highest first
  };

  // Makes the folder if need be and removes what interrupted saves left in it. `files` must outlive the store.
  static absl::StatusOr<std::unique_ptr<CheckpointStore>> Open(FileSystem* files, const std::string& root,
                                                               absl::Duration disk_deadline = kDiskDeadline);

  // Makes an empty .tmp folder for one Save() of this version; its name in root().
  absl::StatusOr<std::string> BeginFolder(PolicyVersion version);

  // Writes files into a folder that is there, durable when this returns OK but for their names. The errors of the
  // writers and of the disk.
  static absl::StatusOr<Files> WriteFiles(FileSystem* files, const std::string& folder,
                                          const std::map<std::string, Contents>& contents);

  // Writes a checkpoint; durable when this returns OK. If it fails, or the process dies, all older ones are untouched.
  // OK without writing if this version is there and verifies; one that does not verify is replaced. FAILED_PRECONDITION
  // (reason FOLDER_NOT_SHARED) if what another rank has written is not here.
  // INVALID_ARGUMENT (reason BAD_CHECKPOINT) for a request that cannot be; errors of the writers, of last_look and
  // of the disk as they come.
  absl::Status Save(const SaveRequest& request);

  // The highest version that verifies; those that are damaged or cannot be read for an IO_ERROR are skipped, any other
  // error ends the search. NOT_FOUND (reason NO_CHECKPOINT) if there is none at all, DATA_LOSS (reason
  // CHECKPOINTS_DAMAGED) if there are some and none verifies, saying what is wrong with each. Reads all of it.
  absl::StatusOr<Latest> LoadLatest();

  // Reads the manifest and every byte of every file. DATA_LOSS (reason CHECKPOINT_DAMAGED) names the file and what is
  // wrong; NOT_FOUND (reason NO_CHECKPOINT) if there is no such checkpoint; else the disk's error.
  absl::StatusOr<CheckpointManifest> Verify(PolicyVersion version);

  // One file of a verified checkpoint, checked again as it is read, so that what is returned is what was saved.
  absl::StatusOr<std::string> ReadFile(const CheckpointManifest& checkpoint, const std::string& file);

  // Maps a file that has just been verified; checks its size alone.
  // Mapped from the real disk, whatever files() is.
  absl::StatusOr<std::unique_ptr<MappedFile>> MapFile(const CheckpointManifest& checkpoint, const std::string& file);

  // The versions that have a folder, lowest first, whether they verify or not.
  absl::StatusOr<std::vector<PolicyVersion>> List();

  // Deletes all that are lower than the `keep` highest that verify; nothing if fewer verify. `best` is moved to
  // <root>/best/ instead, in place of what is there. Returns what is gone from its place.
  // INVALID_ARGUMENT (reason BAD_OPTIONS) for keep < 2.
  absl::StatusOr<std::vector<PolicyVersion>> Prune(int keep, PolicyVersion best = {});

  // Removes <root>/best/ if it contains another version than this one, or nothing complete.
  absl::Status RemoveBestUnless(PolicyVersion version);
  // Whether it has a folder under its name.
  bool Contains(PolicyVersion version) { return files_->List(GetPath(version)).ok(); }

  // DEADLINE_EXCEEDED (reason DISK_STUCK), naming the path, if a call to the disk does not come back. From any thread.
  absl::Status CheckDisk() const { return watched_->CheckCalls(disk_deadline_); }

  const std::string& root() const { return root_; }
  FileSystem* files() const { return files_; }

 private:
  CheckpointStore(FileSystem* files, std::string root, absl::Duration disk_deadline)
      : watched_(std::make_unique<WatchedFileSystem>(files)),
        files_(watched_.get()),
        root_(std::move(root)),
        disk_deadline_(disk_deadline) {}
  std::string GetPath(PolicyVersion version) const { return JoinPath(root_, version.ToString()); }
  std::string BestPath() const;
  std::string NewTemporaryPath(PolicyVersion version) const;
  absl::Status Remove(const std::string& folder, PolicyVersion version);
  absl::Status MoveToBest(PolicyVersion version);

  // What there is under a checkpoint's name.
  enum class Presence : uint8_t { kAbsent, kDamaged, kWhole };
  absl::StatusOr<bool> SaveInto(const SaveRequest& request, const std::string& folder);
  absl::StatusOr<Presence> FindPresence(const SaveRequest& request);
  absl::StatusOr<Files> WriteMine(const SaveRequest& request, const std::string& folder);
  absl::Status WriteManifest(const SaveRequest& request, const std::string& folder, const Files& mine,
                             const Files& others);
  absl::Status Publish(const SaveRequest& request, const std::string& folder, bool replaces);
  // What the manifest says of a file. DATA_LOSS (reason CHECKPOINT_DAMAGED) if it does not.
  absl::StatusOr<CheckpointFile> FindFile(const CheckpointManifest& checkpoint, const std::string& file) const;
  absl::Status CheckFile(const CheckpointManifest& checkpoint, const std::string& name, const CheckpointFile& expected);

  const std::unique_ptr<WatchedFileSystem> watched_;
  FileSystem* const files_;  // that one
  const std::string root_;
  const absl::Duration disk_deadline_;
};

}  // namespace syncopate::trainer
