#include "synchronizer/ipc/socket_folder.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file_descriptor.h"
#include "base/status.h"

namespace syncopate::synchronizer::ipc {
namespace {

constexpr char kPrefix[] = "syncopate-ipc-";
constexpr char kSocketName[] = "/socket";
// A folder this young may belong to a process that is about to listen.
constexpr time_t kSettlingSeconds = 60;

std::string SocketFor(const std::string& folder) { return folder + kSocketName; }

// A process that was killed leaves its socket behind, and connecting to it is how to tell: nobody listens, or the file
// is gone. Anything else may be a process at work.
bool NobodyListens(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return false;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  FileDescriptor fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return false;
  return ::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 &&
         (errno == ECONNREFUSED || errno == ENOENT);
}

bool LeftBehind(const std::string& folder) {
  struct stat facts {};
  // lstat(), and our own folders only: a link in a folder that all may write to must lead nowhere.
  return ::lstat(folder.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode) && facts.st_uid == ::geteuid() &&
         facts.st_mtime + kSettlingSeconds < std::time(nullptr) && NobodyListens(SocketFor(folder));
}

void RemoveFolder(const std::string& folder) {
  ::unlink(SocketFor(folder).c_str());
  ::rmdir(folder.c_str());  // a folder that holds anything else is not ours to remove
}

void RemoveLeftBehind(const std::string& parent) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(parent, error)) {
    if (!entry.path().filename().string().starts_with(kPrefix)) continue;
    if (LeftBehind(entry.path().string())) RemoveFolder(entry.path().string());
  }
}

}  // namespace

absl::StatusOr<SocketFolder> SocketFolder::Create(const std::string& parent) {
  RemoveLeftBehind(parent);
  std::string path = absl::StrCat(parent, "/", kPrefix, "XXXXXX");
  if (::mkdtemp(path.data()) == nullptr) {  // mode 0700
    return Error(absl::StatusCode::kUnavailable, "SYSTEM",
                 absl::StrCat("no folder for a socket can be made in ", parent, ": ", std::strerror(errno)));
  }
  return SocketFolder(std::move(path));
}

SocketFolder::SocketFolder(SocketFolder&& other) noexcept : path_(std::exchange(other.path_, "")) {}

SocketFolder::~SocketFolder() {
  if (!path_.empty()) RemoveFolder(path_);
}

std::string SocketFolder::socket_path() const { return SocketFor(path_); }

}  // namespace syncopate::synchronizer::ipc
