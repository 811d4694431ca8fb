#pragma once

#include <cstdint>
#include <string>

// Numbers as people read them, in tables, on terminals and pages. Pure.
namespace syncopate {

std::string Thousands(int64_t value);      // 12,345
std::string Percent(double share);         // 0.123 -> "12%"
std::string Milliseconds(double seconds);  // 0.0061 -> "6.1 ms"
std::string Clocked(double seconds);       // 75 -> "1:15"

// part / whole; 0 if `whole` is not positive.
double Share(double part, double whole);

}  // namespace syncopate
