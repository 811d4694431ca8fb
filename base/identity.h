#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/trajectory.h"

// The identity of a process, and its proof. Pure functions except MemberSecret::Draw.
namespace syncopate {

// What a process shows to prove that it is the member it names: random bytes, drawn when it starts, whose SHA-256 is
// its incarnation. So any process that knows the member can check the secret, and none can compute it. The secret is
// sent only to daemons of the run, in messages that have a field for it: it has no text form.
class MemberSecret {
 public:
  static constexpr size_t kBytes = 32;

  MemberSecret() = default;  // no secret: proves nothing
  explicit MemberSecret(std::string bytes) : bytes_(std::move(bytes)) {}
  static MemberSecret Draw();  // from the kernel's generator; thread-safe

  // The secret's SHA-256 as 64 lower-case hexadecimal digits.
  std::string incarnation() const;
  // The secret's bytes, for the message that carries them.
  const std::string& Reveal() const { return bytes_; }

 private:
  std::string bytes_;
};

// False for "trainer-N" and "synchronizer-N": in logs, tables and file names, a rollouter of that name would look like
// another daemon.
bool IsRollouterName(absl::string_view name);

// OK if all fields of `member` are valid: a role (trainer or rollouter), a replica id and an incarnation of 1 to 128
// letters, digits, '.', '_' and '-' that do not begin with '.' (they get into logs, tables and file names), no
// rollouter with the name of another role's daemon, a world of 1 to 4096 ranks and a rank below it. Else
// INVALID_ARGUMENT reason BAD_MEMBER.
absl::Status CheckMember(const MemberId& member);

// OK if `secret` is the member's secret, by its incarnation; else PERMISSION_DENIED reason WRONG_SECRET.
absl::Status CheckSpeaksFor(const MemberId& member, absl::string_view secret);

}  // namespace syncopate
