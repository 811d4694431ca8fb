#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/status.h"

// The only interface to the disk. Everything durable goes through FileSystem, so that tests can let any operation fail,
// write a part, or get lost (tests/support/faulty_file_system.h).
//
// Errors name the operation, the path and the remedy, with these reasons:
//   NO_SPACE (RESOURCE_EXHAUSTED), TOO_MANY_FILES (RESOURCE_EXHAUSTED), PERMISSION (PERMISSION_DENIED),
//   NO_SUCH_FILE (NOT_FOUND), FILE_EXISTS (ALREADY_EXISTS), SYMLINK (INVALID_ARGUMENT), IO_ERROR (UNAVAILABLE).
namespace syncopate {

// A file open for reading from its beginning. Not thread-safe. The destructor closes it.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  // The next bytes, at most `max_bytes` of them; empty at the end of the file only.
  virtual absl::StatusOr<std::string> Read(int64_t max_bytes) = 0;
};

// A file open for appending. Not thread-safe. The destructor closes it; unsynced data may then be lost.
class AppendFile {
 public:
  virtual ~AppendFile() = default;
  // Adds `data` at the end. After an error any part of it may have been written.
  virtual absl::Status Append(absl::string_view data) = 0;
  // Makes the file's contents durable. After an error, what was appended since the last good Sync may or may not be
  // on the disk, now and after a later good Sync: truncate it away and append it again.
  virtual absl::Status Sync() = 0;
  // Cuts the file to its first `bytes` bytes. Durable after the next Sync.
  virtual absl::Status Truncate(int64_t bytes) = 0;
  virtual int64_t size() const = 0;
};

// Thread-safe; every call may block for as long as the disk does. Symbolic links in the last component are refused.
class FileSystem {
 public:
  enum class OpenMode {
    kCreateNew,     // the file must not exist
    kOpenOrCreate,  // appends to what is there
  };

  virtual ~FileSystem() = default;

  // Makes a folder and its missing parents (mode 0700), durably. OK if it is there.
  virtual absl::Status CreateDirs(const std::string& path) = 0;
  // The names in a folder, sorted, without "." and "..".
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& path) = 0;
  // The size of a regular file.
  virtual absl::StatusOr<int64_t> FileBytes(const std::string& path) = 0;
  virtual absl::StatusOr<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& path) = 0;
  // A new file gets mode 0600. Its name is durable only after SyncDir of its folder.
  virtual absl::StatusOr<std::unique_ptr<AppendFile>> OpenForAppend(const std::string& path, OpenMode mode) = 0;
  // Atomic. Replaces a file; refuses a folder that is not empty. Durable after SyncDir of both folders.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  // Removes a file, or a folder with its contents. OK if it is not there. Durable after SyncDir of its parent folder.
  virtual absl::Status RemoveTree(const std::string& path) = 0;
  // Makes the names in a folder durable.
  virtual absl::Status SyncDir(const std::string& path) = 0;

  // The process's real disk; never destroyed.
  static FileSystem* Real();
};

// Reads a whole file. INVALID_ARGUMENT (reason FILE_TOO_LARGE) if it is longer than `max_bytes`; reads no further then.
absl::StatusOr<std::string> ReadFile(FileSystem* files, const std::string& path, int64_t max_bytes);

// Writes a temporary file beside `path`, syncs it, renames it to `path` and syncs the folder: after a crash at any
// moment `path` has either all of the old contents or all of the new.
absl::Status WriteFileAtomically(FileSystem* files, const std::string& path, absl::string_view contents);

// OK if `name` may be used inside run directories: [A-Za-z0-9._-]{1,128}, neither "." nor "..". Else INVALID_ARGUMENT
// (reason BAD_NAME).
absl::Status CheckFileName(absl::string_view name);

std::string JoinPath(absl::string_view folder, absl::string_view name);
// The folder that contains `path`: "a/b" gives "a", "b" gives ".", "/b" gives "/".
std::string ParentPath(absl::string_view path);

// The error of a failed system call; used by implementations of FileSystem.
absl::Status FileError(absl::string_view operation, absl::string_view path, int error_number);

}  // namespace syncopate
