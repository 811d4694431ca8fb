#pragma once

#include <string>
#include <vector>

#include "tools/api/descriptors.h"

namespace syncopate::api {

// What `after` takes away from those who were written against `before`: files, services, calls, messages, fields, enums
// or values that are gone, fields with another number, name, type, cardinality or oneof, calls with other messages or
// streaming, and reserved numbers that are free again. Additions break nobody. One line each; the message may go by
// any program that was compiled against the package, by JSON, or lie on a disk, so names count as much as numbers.
std::vector<std::string> BreakingChanges(const ApiDescriptors& before, const ApiDescriptors& after);

}  // namespace syncopate::api
