#pragma once

#include <string>

#include "absl/status/status.h"
#include "base/file_system.h"

namespace syncopate::trainerd {

// <run_dir>/state/trainer/model.json remembers what is in model.path (model::FingerprintModel). Written when a run
// begins; once it has `begun`, `folder` must hold the same, wherever it is, and may be gone, in whole or in part.
// FAILED_PRECONDITION (reason FIXED_KEY) naming a file that differs; DATA_LOSS (reason BAD_RECORD); errors of
// FingerprintModel and FileSystem. A run that was begun before there was such a record has none. Blocks for the disk.
absl::Status KeepModelFingerprint(FileSystem* files, const std::string& run_dir, const std::string& folder, bool begun);

}  // namespace syncopate::trainerd
