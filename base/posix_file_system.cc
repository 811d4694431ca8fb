#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/file_descriptor.h"
#include "base/file_system.h"

namespace syncopate {
namespace {

// Repeats a system call for as long as signals interrupt it.
template <typename Call>
auto Uninterrupted(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// Follows no links: run directories may be shared, and a link in one could lead a daemon that runs as root anywhere.
absl::StatusOr<FileDescriptor> OpenDescriptor(absl::string_view operation, const std::string& path, int flags) {
  constexpr mode_t kFileMode = 0600;
  int fd = Uninterrupted([&] { return ::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, kFileMode); });
  if (fd < 0) return FileError(operation, path, errno);
  return FileDescriptor(fd);
}

class PosixReadableFile final : public ReadableFile {
 public:
  PosixReadableFile(std::string path, FileDescriptor fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  absl::StatusOr<std::string> Read(int64_t max_bytes) override {
    std::string bytes(static_cast<size_t>(max_bytes), '\0');
    ssize_t count = Uninterrupted([&] { return ::read(fd_.get(), bytes.data(), bytes.size()); });
    if (count < 0) return FileError("read", path_, errno);
    bytes.resize(static_cast<size_t>(count));
    return bytes;
  }

 private:
  const std::string path_;
  FileDescriptor fd_;
};

class PosixAppendFile final : public AppendFile {
 public:
  PosixAppendFile(std::string path, FileDescriptor fd, int64_t size)
      : path_(std::move(path)), fd_(std::move(fd)), size_(size) {}

  absl::Status Append(absl::string_view data) override {
    // write() may write only a part, for example on a disk that is nearly full.
    while (!data.empty()) {
      ssize_t count = Uninterrupted([&] { return ::write(fd_.get(), data.data(), data.size()); });
      if (count < 0) return FileError("append to", path_, errno);
      data.remove_prefix(static_cast<size_t>(count));
      size_ += count;
    }
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    // fdatasync, because none of an inode's times is needed after a crash; the size is synced with the data.
    if (Uninterrupted([&] { return ::fdatasync(fd_.get()); }) < 0) return FileError("sync", path_, errno);
    return absl::OkStatus();
  }

  absl::Status Truncate(int64_t bytes) override {
    if (Uninterrupted([&] { return ::ftruncate(fd_.get(), bytes); }) < 0) return FileError("truncate", path_, errno);
    size_ = bytes;
    return absl::OkStatus();
  }

  int64_t size() const override { return size_; }

 private:
  const std::string path_;
  FileDescriptor fd_;
  int64_t size_;
};

class PosixFileSystem final : public FileSystem {
 public:
  absl::Status CreateDirs(const std::string& path) override {
    // Syncs the parent: otherwise the folder is lost after a power cut, with all that was synced inside it.
    constexpr mode_t kFolderMode = 0700;
    if (::mkdir(path.c_str(), kFolderMode) == 0) return SyncDir(ParentPath(path));
    if (errno == ENOENT && ParentPath(path) != path) {
      SYNCOPATE_RETURN_IF_ERROR(CreateDirs(ParentPath(path)));
      if (::mkdir(path.c_str(), kFolderMode) == 0) return SyncDir(ParentPath(path));
    }
    struct stat found {};
    int why = errno;
    if (why == EEXIST && ::stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode)) return absl::OkStatus();
    return FileError("make the folder", path, why);
  }

  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    auto close = [](DIR* folder) { ::closedir(folder); };
    std::unique_ptr<DIR, decltype(close)> folder(::opendir(path.c_str()), close);
    if (folder == nullptr) return FileError("list", path, errno);
    std::vector<std::string> names;
    errno = 0;
    while (const dirent* entry = ::readdir(folder.get())) {
      absl::string_view name(entry->d_name);
      if (name != "." && name != "..") names.emplace_back(name);
      errno = 0;
    }
    if (errno != 0) return FileError("list", path, errno);
    // Sorted, so that nothing depends on the file system's order.
    std::sort(names.begin(), names.end());
    return names;
  }

  absl::StatusOr<int64_t> FileBytes(const std::string& path) override {
    struct stat found {};
    // lstat, because no file of a run is a link: following one could lead to files of other users.
    if (::lstat(path.c_str(), &found) != 0) return FileError("look at", path, errno);
    if (S_ISLNK(found.st_mode)) return FileError("look at", path, ELOOP);
    if (!S_ISREG(found.st_mode)) return FileError("look at", path, ENOENT);
    return static_cast<int64_t>(found.st_size);
  }

  absl::StatusOr<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& path) override {
    SYNCOPATE_ASSIGN_OR_RETURN(FileDescriptor fd, OpenDescriptor("open", path, O_RDONLY));
    return std::unique_ptr<ReadableFile>(new PosixReadableFile(path, std::move(fd)));
  }

  absl::StatusOr<std::unique_ptr<AppendFile>> OpenForAppend(const std::string& path, OpenMode mode) override {
    int flags = O_WRONLY | O_APPEND | O_CREAT | (mode == OpenMode::kCreateNew ? O_EXCL : 0);
    SYNCOPATE_ASSIGN_OR_RETURN(FileDescriptor fd, OpenDescriptor("open for writing", path, flags));
    struct stat found {};
    if (::fstat(fd.get(), &found) != 0) return FileError("look at", path, errno);
    return std::unique_ptr<AppendFile>(new PosixAppendFile(path, std::move(fd), found.st_size));
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) return FileError("rename " + from + " to", to, errno);
    return absl::OkStatus();
  }

  absl::Status RemoveTree(const std::string& path) override {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    if (error) return FileError("remove", path, error.value());
    return absl::OkStatus();
  }

  absl::Status SyncDir(const std::string& path) override {
    SYNCOPATE_ASSIGN_OR_RETURN(FileDescriptor fd, OpenDescriptor("open the folder", path, O_RDONLY | O_DIRECTORY));
    if (Uninterrupted([&] { return ::fsync(fd.get()); }) < 0) return FileError("sync the folder", path, errno);
    return absl::OkStatus();
  }
};

}  // namespace

FileSystem* FileSystem::Real() {
  static PosixFileSystem* const files = new PosixFileSystem;
  return files;
}

}  // namespace syncopate
