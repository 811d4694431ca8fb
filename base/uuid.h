#pragma once

#include <cstddef>
#include <string>

namespace syncopate {

// `count` bytes, at most 256, from the kernel's random generator. Thread-safe; a forked child gets different bytes.
std::string RandomBytes(size_t count);

// A random UUID (version 4, RFC 4122) in lower case, made from RandomBytes.
std::string RandomUuid();

}  // namespace syncopate
