#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "base/status.h"

// What the ranks of one trainer or one replica share, so that nobody else can take a seat among them or end them: 32
// random bytes. They travel in hellos and nowhere else; no log, error or command line holds them.
namespace syncopate {

inline constexpr size_t kGroupSecretBytes = 32;

// The environment variable by which whoever starts the ranks of a replica gives them their secret, in hexadecimal.
inline constexpr char kGroupSecretVariable[] = "SYNCOPATE_RANKS_SECRET";

// New random bytes. Thread-safe.
std::string DrawGroupSecret();

// Whether `shown` is the group's secret. Takes the same time however much of it is right; false if `secret` is none.
bool IsGroupSecret(absl::string_view secret, absl::string_view shown);

// "SYNCOPATE_RANKS_SECRET=<64 hexadecimal digits>", for the environment of a process that is started.
std::string GroupSecretAssignment(absl::string_view secret);

// What `text`, the variable's value, says; "" if it is null or empty. INVALID_ARGUMENT (reason BAD_CONFIG) if it is not
// 64 hexadecimal digits.
absl::StatusOr<std::string> ParseGroupSecret(const char* text);

// What a hello is refused with that does not show the secret: PERMISSION_DENIED (reason WRONG_SECRET). `how` says how
// such ranks come by it.
absl::Status WrongGroupSecret(absl::string_view rank, absl::string_view how);

}  // namespace syncopate
