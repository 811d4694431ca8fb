#include <sys/statvfs.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>

#include "absl/time/clock.h"
#include "base/file_system.h"
#include "base/status.h"
#include "base/uuid.h"
#include "tools/doctor/looks.h"

namespace syncopate::doctor {
namespace {

namespace fs = std::filesystem;

// The nearest existing ancestor of `path`, or `path` itself.
std::string Existing(const std::string& path) {
  std::error_code ignored;
  fs::path folder = path.empty() ? fs::current_path(ignored) : fs::absolute(path, ignored).lexically_normal();
  while (!fs::is_directory(folder, ignored) && folder.has_relative_path()) folder = folder.parent_path();
  return folder.string();
}

// Names of common file systems, by the magic numbers of statfs(2).
std::string GetFileSystem(const std::string& folder) {
  static const auto* const names = new std::map<int64_t, std::string>{
      {0xEF53, "ext4"},        {0x58465342, "xfs"}, {0x9123683E, "btrfs"}, {0x01021994, "tmpfs"}, {0x858458f6, "ramfs"},
      {0x794c7630, "overlay"}, {0x6969, "nfs"},     {0x65735546, "fuse"},  {0xff534d42, "cifs"},  {0x2fc12fc1, "zfs"}};
  struct statfs facts {};
  if (::statfs(folder.c_str(), &facts) != 0) return "";
  auto found = names->find(static_cast<int64_t>(static_cast<uint32_t>(facts.f_type)));
  return found == names->end() ? "" : found->second;
}

// Appends and syncs a few times; the median is the time that an acknowledgement waits for.
absl::StatusOr<absl::Duration> TimeSyncs(AppendFile* file) {
  const std::string record(4096, 'x');
  std::array<absl::Duration, 9> times;
  for (absl::Duration& time : times) {
    const absl::Time start = absl::Now();
    SYNCOPATE_RETURN_IF_ERROR(file->Append(record));
    SYNCOPATE_RETURN_IF_ERROR(file->Sync());
    time = absl::Now() - start;
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

absl::StatusOr<absl::Duration> TryToWrite(const std::string& folder) {
  const std::string path = JoinPath(folder, ".syncopate-doctor-" + RandomUuid());
  auto file = FileSystem::Real()->OpenForAppend(path, FileSystem::OpenMode::kCreateNew);
  if (!file.ok()) return file.status();
  absl::StatusOr<absl::Duration> time = TimeSyncs(file->get());
  file->reset();
  absl::Status removed = FileSystem::Real()->RemoveTree(path);
  return time.ok() && !removed.ok() ? absl::StatusOr<absl::Duration>(removed) : time;
}

}  // namespace

FolderFacts InspectFolder(const std::string& path) {
  FolderFacts facts;
  facts.path = Existing(path);
  facts.file_system = GetFileSystem(facts.path);
  struct statvfs space {};
  if (::statvfs(facts.path.c_str(), &space) == 0) {
    facts.free_bytes = static_cast<int64_t>(space.f_bavail) * static_cast<int64_t>(space.f_frsize);
  }
  absl::StatusOr<absl::Duration> sync = TryToWrite(facts.path);
  facts.writable = sync.status();
  if (sync.ok()) facts.sync = *sync;
  return facts;
}

}  // namespace syncopate::doctor
