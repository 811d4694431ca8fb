#include "base/watched_file_system.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/reasons.h"

namespace syncopate {

template <typename Work>
auto WatchedFileSystem::Watch(const char* what, const std::string& path, const Work& work) {
  uint64_t number = 0;
  {
    MutexLock lock(&mutex_);
    number = next_++;
    calls_.emplace(number, Call{what, path, clock_->Now()});
  }
  // Runs without the lock, so that CheckCalls does not wait for the disk.
  auto result = work();
  MutexLock lock(&mutex_);
  calls_.erase(number);
  return result;
}

class WatchedFileSystem::Reading final : public ReadableFile {
 public:
  Reading(WatchedFileSystem* watch, std::string path, std::unique_ptr<ReadableFile> file)
      : watch_(watch), path_(std::move(path)), file_(std::move(file)) {}
  absl::StatusOr<std::string> Read(int64_t max_bytes) override {
    return watch_->Watch("reading", path_, [&] { return file_->Read(max_bytes); });
  }

 private:
  WatchedFileSystem* const watch_;
  const std::string path_;
  const std::unique_ptr<ReadableFile> file_;
};

class WatchedFileSystem::Appending final : public AppendFile {
 public:
  Appending(WatchedFileSystem* watch, std::string path, std::unique_ptr<AppendFile> file)
      : watch_(watch), path_(std::move(path)), file_(std::move(file)) {}
  absl::Status Append(absl::string_view data) override {
    return watch_->Watch("writing", path_, [&] { return file_->Append(data); });
  }
  absl::Status Sync() override {
    return watch_->Watch("syncing", path_, [&] { return file_->Sync(); });
  }
  absl::Status Truncate(int64_t bytes) override {
    return watch_->Watch("cutting", path_, [&] { return file_->Truncate(bytes); });
  }
  int64_t size() const override { return file_->size(); }

 private:
  WatchedFileSystem* const watch_;
  const std::string path_;
  const std::unique_ptr<AppendFile> file_;
};

absl::Status WatchedFileSystem::CheckCalls(absl::Duration most) const {
  const absl::Time now = clock_->Now();
  MutexLock lock(&mutex_);
  // Numbers rise with time, so the first call in the map has been in progress the longest.
  if (calls_.empty() || now - calls_.begin()->second.since < most) return absl::OkStatus();
  const Call& oldest = calls_.begin()->second;
  return Error(absl::StatusCode::kDeadlineExceeded, reason::kDiskStuck,
               absl::StrCat(oldest.what, " ", oldest.path, " has not come back for ",
                            absl::FormatDuration(absl::Trunc(now - oldest.since, absl::Milliseconds(1))),
                            "; the disk or network file system where it is stored does not answer"));
}

absl::Status WatchedFileSystem::CreateDirs(const std::string& path) {
  return Watch("making", path, [&] { return files_->CreateDirs(path); });
}

absl::StatusOr<std::vector<std::string>> WatchedFileSystem::List(const std::string& path) {
  return Watch("listing", path, [&] { return files_->List(path); });
}

absl::StatusOr<int64_t> WatchedFileSystem::FileBytes(const std::string& path) {
  return Watch("looking at", path, [&] { return files_->FileBytes(path); });
}

absl::StatusOr<std::unique_ptr<ReadableFile>> WatchedFileSystem::OpenForRead(const std::string& path) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto file, Watch("opening", path, [&] { return files_->OpenForRead(path); }));
  return std::make_unique<Reading>(this, path, std::move(file));
}

absl::StatusOr<std::unique_ptr<AppendFile>> WatchedFileSystem::OpenForAppend(const std::string& path, OpenMode mode) {
  SYNCOPATE_ASSIGN_OR_RETURN(auto file, Watch("opening", path, [&] { return files_->OpenForAppend(path, mode); }));
  return std::make_unique<Appending>(this, path, std::move(file));
}

absl::Status WatchedFileSystem::Rename(const std::string& from, const std::string& to) {
  return Watch("renaming", from, [&] { return files_->Rename(from, to); });
}

absl::Status WatchedFileSystem::RemoveTree(const std::string& path) {
  return Watch("removing", path, [&] { return files_->RemoveTree(path); });
}

absl::Status WatchedFileSystem::SyncDir(const std::string& path) {
  return Watch("syncing", path, [&] { return files_->SyncDir(path); });
}

}  // namespace syncopate
