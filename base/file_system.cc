#include "base/file_system.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/reasons.h"
#include "base/uuid.h"

namespace syncopate {
namespace {

constexpr int64_t kReadChunkBytes = 1 << 20;
constexpr size_t kMaxNameBytes = 128;

absl::Status WriteAndSync(FileSystem* files, const std::string& path, absl::string_view contents) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<AppendFile> file,
                             files->OpenForAppend(path, FileSystem::OpenMode::kCreateNew));
  SYNCOPATE_RETURN_IF_ERROR(file->Append(contents));
  return file->Sync();
}

}  // namespace

absl::StatusOr<std::string> ReadFile(FileSystem* files, const std::string& path, int64_t max_bytes) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<ReadableFile> file, files->OpenForRead(path));
  std::string contents;
  while (true) {
    // Asks for one byte beyond the limit, to tell a file of exactly max_bytes from a larger one.
    int64_t room = max_bytes + 1 - static_cast<int64_t>(contents.size());
    SYNCOPATE_ASSIGN_OR_RETURN(std::string chunk, file->Read(std::min(room, kReadChunkBytes)));
    if (chunk.empty()) return contents;
    contents += chunk;
    if (static_cast<int64_t>(contents.size()) > max_bytes) {
      return Error(absl::StatusCode::kInvalidArgument, "FILE_TOO_LARGE",
                   absl::StrFormat("%s has more than the %d bytes that are allowed here", path, max_bytes),
                   {{"path", path}});
    }
  }
}

absl::Status WriteFileAtomically(FileSystem* files, const std::string& path, absl::string_view contents) {
  // Another process may write the same file now, so each uses its own temporary name.
  std::string temporary = absl::StrCat(path, ".tmp-", RandomUuid().substr(0, 8));
  absl::Status status = WriteAndSync(files, temporary, contents);
  if (status.ok()) status = files->Rename(temporary, path);
  if (!status.ok()) {
    files->RemoveTree(temporary).IgnoreError();  // the first error is the one that matters
    return status;
  }
  // A rename is durable once the folder is.
  return files->SyncDir(ParentPath(path));
}

absl::Status CheckFileName(absl::string_view name) {
  bool good = !name.empty() && name.size() <= kMaxNameBytes && name != "." && name != "..";
  // Only few characters are allowed: names also come from peers, and go into paths, logs and shell commands.
  for (char c : name) good = good && (absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-');
  if (good) return absl::OkStatus();
  return Error(absl::StatusCode::kInvalidArgument, "BAD_NAME",
               absl::StrFormat("'%s' is not a file name: use 1 to %d of A-Z a-z 0-9 . _ -",
                               absl::CHexEscape(name.substr(0, kMaxNameBytes)), kMaxNameBytes));
}

std::string JoinPath(absl::string_view folder, absl::string_view name) {
  if (folder.empty()) return std::string(name);
  return absl::StrCat(folder, folder.back() == '/' ? "" : "/", name);
}

std::string ParentPath(absl::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  size_t slash = path.rfind('/');
  if (slash == absl::string_view::npos) return ".";
  return slash == 0 ? "/" : std::string(path.substr(0, slash));
}

absl::Status FileError(absl::string_view operation, absl::string_view path, int error_number) {
  auto error = [&](absl::StatusCode code, absl::string_view reason, absl::string_view remedy) {
    return Error(code, reason,
                 absl::StrCat("cannot ", operation, " ", path, ": ", std::strerror(error_number), "; ", remedy),
                 {{"path", std::string(path)}});
  };
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
      return error(absl::StatusCode::kResourceExhausted, reason::kNoSpace,
                   "free space on that disk, or set run.dir to another");
    case EMFILE:
    case ENFILE:
      return error(absl::StatusCode::kResourceExhausted, "TOO_MANY_FILES", "raise the limit of open files (ulimit -n)");
    case EACCES:
    case EPERM:
    case EROFS:
      return error(absl::StatusCode::kPermissionDenied, "PERMISSION",
                   "make it readable and writable for the user of this process");
    case ENOENT:
    case ENOTDIR:
      return error(absl::StatusCode::kNotFound, "NO_SUCH_FILE", "check the path");
    case EEXIST:
    case ENOTEMPTY:
      return error(absl::StatusCode::kAlreadyExists, "FILE_EXISTS", "remove it, or choose another name");
    case ELOOP:
      return error(absl::StatusCode::kInvalidArgument, "SYMLINK",
                   "symbolic links are not followed here; give the real path");
    case ENAMETOOLONG:
      return error(absl::StatusCode::kInvalidArgument, "BAD_NAME", "use a shorter path");
    default:
      return error(absl::StatusCode::kUnavailable, reason::kIoError, "check the disk (dmesg)");
  }
}

}  // namespace syncopate
