#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "base/file_system.h"

namespace syncopate::trainer {

// Which run a run directory is of, and the epoch of the trainer that worked in it last: what a trainer that finds a higher
// epoch there knows its successor by. A file of JSON; survives restarts beside checkpoints and log. Not thread-safe, but
// for several readers.
class IdentityFile {
 public:
  struct Identity {
    std::string run_id;
    int64_t epoch = 0;
  };

  // `files` must outlive it.
  IdentityFile(FileSystem* files, std::string path) : files_(files), path_(std::move(path)) {}

  // An empty one if there is no file. DATA_LOSS (reason BAD_IDENTITY) if it is damaged; those of ReadFile.
  absl::StatusOr<Identity> Read() const;
  // Replaces what was there, wholly or not at all. Errors of WriteFileAtomically.
  absl::Status Write(const Identity& identity) const;

 private:
  FileSystem* const files_;
  const std::string path_;
};

}  // namespace syncopate::trainer
