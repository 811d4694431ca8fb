#pragma once

#include <string>

namespace syncopate {

// A random UUID (version 4, RFC 4122) in lower case, from the kernel's generator. Thread-safe; different in a forked
// child.
std::string RandomUuid();

}  // namespace syncopate
