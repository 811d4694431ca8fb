#pragma once

#include <string>
#include <vector>

#include "services/auth/role.h"

namespace syncopate::auth {

enum class CallEffect {
  kReads,  // changes nothing that outlives the call
  kActs,   // changes a daemon or the run: each such call is written to the audit log
};

// The roles that may make one call.
struct Permission {
  std::string service;  // "syncopate.v1.TrainerService"
  std::string method;
  CallEffect effect = CallEffect::kReads;
  AuthRoles roles;
  bool says_hello = false;  // a stream by which its caller takes part in the run, in the role that its hello names
};

// The only table of permissions, with every call that a daemon serves. A call that is not in it is refused to
// everybody.
const std::vector<Permission>& AllPermissions();

// The entry of "/package.Service/Method", or null if there is none.
const Permission* FindPermission(const std::string& path);

}  // namespace syncopate::auth
