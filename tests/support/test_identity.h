#pragma once

#include <string>

#include "absl/strings/escaping.h"
#include "base/identity.h"
#include "base/sha256.h"

namespace syncopate::testing {

// The secret of the process that a test calls `name`: the same each time, another one for another name.
inline MemberSecret GetSecret(const std::string& name) { return MemberSecret(absl::HexStringToBytes(Sha256Hex(name))); }

// The incarnation that it is the secret of.
inline std::string GetIncarnation(const std::string& name) { return GetSecret(name).incarnation(); }

}  // namespace syncopate::testing
