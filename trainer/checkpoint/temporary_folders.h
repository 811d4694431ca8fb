#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "base/file_system.h"
#include "base/status.h"

// Folders that are written under a temporary name and renamed when they are whole: what has its final name is whole,
// unless the disk damaged it later; what has a temporary name was never finished, or is being removed.
namespace syncopate::trainer {

// A name that no other call gives, for a folder of `what`.
std::string NewTemporaryName(absl::string_view what);

// Removes the temporary folders in `root` that an earlier process has left; what cannot be removed stays until the next
// start, and the log says so. OK if there is no `root`. The error of reading `root`.
absl::Status RemoveTemporaryFolders(FileSystem* files, const std::string& root);

}  // namespace syncopate::trainer
