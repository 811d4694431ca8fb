#pragma once

#include <cstdint>
#include <string>

#include "base/policy_version.h"
#include "syncopate/v1/common.pb.h"

// Numbers as people read them. Pure.
namespace syncopate::telemetry {

std::string Thousands(int64_t value);                   // 12,345
std::string Percent(double share);                      // 0.123 -> "12%"
std::string Milliseconds(double seconds);               // 0.0061 -> "6.1 ms"
std::string Clocked(double seconds);                    // 75 -> "1:15"
std::string Version(const v1::PolicyVersion& version);  // "e1-s42", or "-" for none

// part / whole, 0 where nothing is to be shared.
double Share(double part, double whole);

}  // namespace syncopate::telemetry
