#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "base/status.h"

// The secret that the ranks of one trainer or one replica share, so that no other process can join them or end them: 32
// random bytes. It is sent only in hellos; it must not appear in a log, an error or a command line.
namespace syncopate {

inline constexpr size_t kGroupSecretBytes = 32;

// The environment variable that passes the secret, in hexadecimal, to the ranks of a replica when they are started.
inline constexpr char kGroupSecretVariable[] = "SYNCOPATE_RANKS_SECRET";

// Draws a new secret. Thread-safe.
std::string DrawGroupSecret();

// Whether `shown` is the group's secret. The time does not depend on where they differ; false if `secret` is empty.
bool IsGroupSecret(absl::string_view secret, absl::string_view shown);

// "SYNCOPATE_RANKS_SECRET=<64 hexadecimal digits>", for the environment of a process that is started.
std::string GroupSecretAssignment(absl::string_view secret);

// Parses `text`, the variable's value; "" if it is null or empty. INVALID_ARGUMENT (reason BAD_CONFIG) if it is not 64
// hexadecimal digits.
absl::StatusOr<std::string> ParseGroupSecret(const char* text);

// The error for a hello without the right secret: PERMISSION_DENIED (reason WRONG_SECRET). `how` tells the user how
// such ranks get the secret.
absl::Status WrongGroupSecret(absl::string_view rank, absl::string_view how);

}  // namespace syncopate
