#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "base/file_system.h"

namespace syncopate::trainer {

// The file that names the run of a run directory and the epoch of the trainer that last worked in it: a trainer that
// finds a higher epoch there knows that it has been replaced. JSON, kept beside checkpoints and log. Not thread-safe,
// but several threads may read.
class IdentityFile {
 public:
  struct Identity {
    std::string run_id;
    int64_t epoch = 0;
  };

  // `files` must outlive it.
  IdentityFile(FileSystem* files, std::string path) : files_(files), path_(std::move(path)) {}

  // Returns an empty identity if there is no file. DATA_LOSS (reason BAD_IDENTITY) if it is damaged; errors of
  // ReadFile.
  absl::StatusOr<Identity> Read() const;
  // Replaces what was there, wholly or not at all. Errors of WriteFileAtomically.
  absl::Status Write(const Identity& identity) const;

 private:
  FileSystem* const files_;
  const std::string path_;
};

}  // namespace syncopate::trainer
