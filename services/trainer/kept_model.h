#pragma once

#include <string>

#include "absl/status/status.h"
#include "base/file_system.h"

namespace syncopate::trainerd {

// Checks model.path against <run_dir>/state/trainer/model.json, the fingerprint of its files (model::FingerprintModel).
// A run that begins writes that record. Once the run has `begun`, the files in `folder` must match the record; the
// folder may have another path, and may be missing, in whole or in part. FAILED_PRECONDITION (reason FIXED_KEY) that
// names a file which differs; DATA_LOSS (reason BAD_RECORD); errors of FingerprintModel and FileSystem. OK if a begun
// run has no record. Blocks for the disk.
absl::Status KeepModelFingerprint(FileSystem* files, const std::string& run_dir, const std::string& folder, bool begun);

}  // namespace syncopate::trainerd
