#include "synchronizer/ipc/rendezvous.h"

#include <fstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace syncopate::synchronizer::ipc {
namespace {

constexpr char kVersionWord[] = "ipc1";

}  // namespace

std::string Rendezvous::ToString() const {
  return absl::StrFormat("%s %s %016x %s", kVersionWord, host, memory, socket);
}

absl::StatusOr<Rendezvous> Rendezvous::Parse(const std::string& text) {
  // The path is last, because it may contain blanks.
  std::vector<std::string> words = absl::StrSplit(text, absl::MaxSplits(' ', 3));
  uint64_t memory = 0;
  bool good = words.size() == 4 && words[0] == kVersionWord && !words[1].empty() && words[2].size() == 16 &&
              absl::SimpleHexAtoi(words[2], &memory) && memory != 0 && words[3].starts_with('/');
  if (!good) {
    return Error(absl::StatusCode::kInvalidArgument, "BAD_RENDEZVOUS",
                 absl::StrCat("'", text, "' does not say where to find a member by ipc"));
  }
  return Rendezvous{words[1], memory, words[3]};
}

absl::StatusOr<std::string> HostId() {
  // The boot id is equal in all containers of a host, unlike the host name, and differs between hosts and boots.
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  if (std::getline(file, id) && !id.empty()) return id;
  return Error(absl::StatusCode::kUnavailable, "NO_HOST_ID",
               "/proc/sys/kernel/random/boot_id cannot be read: this host cannot be told from others");
}

}  // namespace syncopate::synchronizer::ipc
