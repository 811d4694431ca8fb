#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "base/status.h"

namespace syncopate {

// The error of a daemon with bad security settings: keys of the configuration, or a file that they name.
inline absl::Status BadSecurity(const std::string& message) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_SECURITY", message);
}

enum class Secrecy {
  kPublic,
  kSecret,  // refused if its group may write it, or if others may read, write or execute it
};

// Reads a whole file of certificates, a key or tokens. Follows symbolic links, because Kubernetes mounts secrets as
// links. INVALID_ARGUMENT (reason BAD_SECURITY) naming the file, what is wrong and the remedy, never the file's
// contents.
absl::StatusOr<std::string> ReadCredentialFile(const std::string& path, Secrecy secrecy);

}  // namespace syncopate
