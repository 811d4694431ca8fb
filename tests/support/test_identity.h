#pragma once

#include <string>

#include "absl/strings/escaping.h"
#include "base/identity.h"
#include "base/sha256.h"

namespace syncopate::testing {

// The secret of the process that a test calls `name`. One name always has the same secret; different names have
// different secrets.
inline MemberSecret GetSecret(const std::string& name) { return MemberSecret(absl::HexStringToBytes(Sha256Hex(name))); }

// The incarnation that belongs to the secret of `name`.
inline std::string GetIncarnation(const std::string& name) { return GetSecret(name).incarnation(); }

}  // namespace syncopate::testing
