#include "synchronizer/nccl/rendezvous.h"

#include <algorithm>
#include <map>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/reasons.h"
#include "base/status.h"

namespace syncopate::synchronizer::nccl {
namespace {

constexpr char kVersionWord[] = "nccl1";
constexpr char kNothingKept[] = "-";

absl::Status Bad(const std::string& detail) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_RENDEZVOUS",
               "a member cannot be met by nccl: its rendezvous " + detail);
}

std::string Version(int number) {
  return absl::StrFormat("%d.%d.%d", number / 10000, number / 100 % 100, number % 100);
}

std::string GetName(const SyncMember& member) {
  return absl::StrFormat("%s rank %d", member.id.replica_id, member.id.rank);
}

}  // namespace

std::string Rendezvous::ToString() const {
  std::string text = absl::StrCat(kVersionWord, " ", version, " ", gpu, " ", kept.empty() ? kNothingKept : kept);
  for (const UniqueId& id : ids) absl::StrAppend(&text, " ", absl::BytesToHexString({id.data(), id.size()}));
  return text;
}

absl::StatusOr<Rendezvous> Rendezvous::Parse(const std::string& text) {
  std::vector<std::string> words = absl::StrSplit(text, ' ');
  Rendezvous parsed;
  if (words.size() < 4 || words[0] != kVersionWord) return Bad("is of another kind");
  if (!absl::SimpleAtoi(words[1], &parsed.version) || parsed.version <= 0) return Bad("has no version");
  if (words[2].empty() || words[3].empty()) return Bad("names no GPU or no group");
  parsed.gpu = words[2];
  if (words[3] != kNothingKept) parsed.kept = words[3];
  for (size_t i = 4; i < words.size(); ++i) {
    UniqueId id{};
    bool hexadecimal = std::ranges::all_of(words[i], [](unsigned char c) { return std::isxdigit(c) != 0; });
    if (!hexadecimal || words[i].size() != 2 * id.size()) return Bad("contains a damaged unique id");
    std::ranges::copy(absl::HexStringToBytes(words[i]), id.begin());
    parsed.ids.push_back(id);
  }
  return parsed;
}

absl::Status CheckMembers(const std::vector<SyncMember>& sources, const std::vector<SyncMember>& receivers,
                          const std::string& group) {
  std::vector<SyncMember> members = sources;
  members.insert(members.end(), receivers.begin(), receivers.end());
  std::map<std::string, std::string> owners;  // by GPU
  int version = 0;
  bool have_ids = false;
  std::string lost;  // a member that does not keep the group
  for (const SyncMember& member : members) {
    absl::StatusOr<Rendezvous> parsed = Rendezvous::Parse(member.rendezvous);
    if (!parsed.ok()) return Annotate(parsed.status(), GetName(member));
    if (version == 0) version = parsed->version;
    have_ids = have_ids || !parsed->ids.empty();
    // A group is kept by all of its members or by none.
    if (parsed->kept != group || group.empty()) lost = GetName(member);
    if (parsed->version != version) {
      return Error(absl::StatusCode::kFailedPrecondition, reason::kNcclMismatch,
                   absl::StrFormat("%s has NCCL %s, %s has %s; run the same NCCL on all members", GetName(member),
                                   Version(parsed->version), GetName(members.front()), Version(version)));
    }
    auto [owner, fresh] = owners.try_emplace(parsed->gpu, GetName(member));
    if (!fresh) {
      return Error(absl::StatusCode::kFailedPrecondition, "DUPLICATE_GPU",
                   absl::StrFormat("%s and %s are on one GPU (%s); NCCL needs one for each, set sync.transport to ipc",
                                   owner->second, GetName(member), parsed->gpu));
    }
  }
  bool mixed = std::ranges::any_of(receivers, [&](const SyncMember& r) { return r.base != receivers.front().base; });
  if (mixed) {
    return Error(absl::StatusCode::kFailedPrecondition, "MIXED_PAYLOAD",
                 "base weights are meant for some receivers alone; a group brings the same to all of its members");
  }
  if (have_ids || lost.empty()) return absl::OkStatus();
  return Error(absl::StatusCode::kUnavailable, reason::kGroupLost,
               absl::StrFormat("%s has no communicator of this group any more; the next attempt forms one", lost));
}

}  // namespace syncopate::synchronizer::nccl
