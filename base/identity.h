#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/trajectory.h"

// Who a process is, and how it proves that. Pure functions but for MemberSecret::Draw.
namespace syncopate {

// What a process shows to prove that it is the member it names: random bytes, drawn when it starts, whose SHA-256 is
// its incarnation. So everybody who knows the member can check the secret, and nobody can make it. It goes to the
// daemons of the run in the messages that have a field for it, and nowhere else: it has no text form.
class MemberSecret {
 public:
  static constexpr size_t kBytes = 32;

  MemberSecret() = default;  // none: speaks for nobody
  explicit MemberSecret(std::string bytes) : bytes_(std::move(bytes)) {}
  static MemberSecret Draw();  // from the kernel's generator; thread-safe

  // As 64 lower-case hexadecimal digits.
  std::string incarnation() const;
  // For the message that shows it.
  const std::string& Reveal() const { return bytes_; }

 private:
  std::string bytes_;
};

// False for "trainer-N" and "synchronizer-N": a rollouter of that name would pass for another daemon in logs, tables and
// file names.
bool IsRollouterName(absl::string_view name);

// OK if a member may be called so: a role (trainer or rollouter), a replica id and an incarnation of 1 to 128 letters,
// digits, '.', '_' and '-' that do not begin with '.' (they get into logs, tables and file names), no rollouter with the
// name of another role's daemon, a world of 1 to 4096 ranks and a rank below it. Else INVALID_ARGUMENT reason BAD_MEMBER.
absl::Status CheckMember(const MemberId& member);

// OK if these are the bytes of the member's secret; else PERMISSION_DENIED reason WRONG_SECRET.
absl::Status CheckSpeaksFor(const MemberId& member, absl::string_view secret);

}  // namespace syncopate
