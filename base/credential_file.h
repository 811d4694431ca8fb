#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "base/status.h"

namespace syncopate {

// What a daemon refuses its security with: keys of the configuration, or a file that they name.
inline absl::Status BadSecurity(const std::string& message) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_SECURITY", message);
}

enum class Secrecy {
  kPublic,
  kSecret,  // refused if others than its owner and group may read or change it
};

// All of a file of certificates, a key or tokens. Follows symbolic links, as Kubernetes mounts secrets by them.
// INVALID_ARGUMENT (reason BAD_SECURITY) naming the file, what is wrong and the remedy; never with its contents.
absl::StatusOr<std::string> ReadCredentialFile(const std::string& path, Secrecy secrecy);

}  // namespace syncopate
