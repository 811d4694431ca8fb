#include "base/identity.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/reasons.h"
#include "base/sha256.h"
#include "base/status.h"
#include "base/uuid.h"

namespace syncopate {
namespace {

constexpr size_t kMaxMemberNameBytes = 128;
constexpr size_t kShownBytes = 40;  // of an invalid name, in the error
constexpr int32_t kMaxWorld = 4096;

bool IsName(const std::string& name) {
  auto allowed = [](char c) { return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-'; };
  return !name.empty() && name.size() <= kMaxMemberNameBytes && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), allowed);
}

absl::Status BadMember(const std::string& message) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_MEMBER", message);
}

// "trainer-0", "synchronizer-12": names of daemons of other roles in files, logs and tables.
bool IsNameOfAnotherRole(absl::string_view name) {
  if (!absl::ConsumePrefix(&name, "trainer-") && !absl::ConsumePrefix(&name, "synchronizer-")) return false;
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) { return absl::ascii_isdigit(c); });
}

absl::Status CheckName(const char* what, const std::string& name) {
  if (IsName(name)) return absl::OkStatus();
  return BadMember(absl::StrCat("a member's ", what, " is 1 to ", kMaxMemberNameBytes,
                                " letters, digits, '.', '_' and '-' and does not begin with '.'; this one has ",
                                name.size(), " bytes: '", absl::CEscape(name.substr(0, kShownBytes)), "'"));
}

}  // namespace

bool IsRollouterName(absl::string_view name) { return !IsNameOfAnotherRole(name); }

MemberSecret MemberSecret::Draw() { return MemberSecret(RandomBytes(kBytes)); }

std::string MemberSecret::incarnation() const { return Sha256Hex(bytes_); }

absl::Status CheckMember(const MemberId& member) {
  if (member.role != "trainer" && member.role != "rollouter") {
    return BadMember("a member's role is trainer or rollouter");
  }
  SYNCOPATE_RETURN_IF_ERROR(CheckName("replica id", member.replica_id));
  if (member.role == "rollouter" && !IsRollouterName(member.replica_id)) {
    return BadMember(absl::StrCat("a rollouter cannot be called ", member.replica_id,
                                  ": that is the name of a daemon of another role"));
  }
  SYNCOPATE_RETURN_IF_ERROR(CheckName("incarnation", member.incarnation));
  if (member.world < 1 || member.world > kMaxWorld || member.rank < 0 || member.rank >= member.world) {
    return BadMember(
        absl::StrCat("rank ", member.rank, " is not in a world of ", member.world, " (1 to ", kMaxWorld, ") ranks"));
  }
  return absl::OkStatus();
}

absl::Status CheckSpeaksFor(const MemberId& member, absl::string_view secret) {
  if (secret.size() == MemberSecret::kBytes && Sha256Hex(secret) == member.incarnation) return absl::OkStatus();
  return Error(absl::StatusCode::kPermissionDenied, reason::kWrongSecret,
               absl::StrCat("a call in the name of ", member.role, " ", absl::CEscape(member.replica_id.substr(0, 128)),
                            " must show the secret whose SHA-256 is its incarnation; only that process has it"));
}

}  // namespace syncopate
