#pragma once

#include <cstddef>
#include <string>

namespace syncopate {

// Up to 256 bytes from the kernel's generator. Thread-safe; different in a forked child.
std::string RandomBytes(size_t count);

// A random UUID (version 4, RFC 4122) in lower case, of RandomBytes.
std::string RandomUuid();

}  // namespace syncopate
