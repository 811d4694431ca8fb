#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace syncopate::data {

struct WorkerTasksRequest {
  std::string worker;                          // "unix:PATH" or host:port of a loopback address
  std::string list;                            // the name of one of the worker's lists of tasks
  std::string output;                          // a new file of JSON lines
  absl::Duration timeout = absl::Minutes(10);  // for the whole list
  int64_t max_row_bytes = 8 << 20;             // the limit of data.files
  std::string token_file = {};                 // its trainer token is shown at host:port; "": none
};

// Writes the rows of a worker's list of tasks, in its order, as a file for data.files, and returns their number;
// blocks. The file appears complete or not at all. Errors: ALREADY_EXISTS (reason FILE_TAKEN); UNAVAILABLE,
// DEADLINE_EXCEEDED or NOT_FOUND from the worker; DATA_LOSS (reason BAD_TASK) that names the task whose row is no JSON
// object or is too long; FAILED_PRECONDITION (reason NO_TASKS) for an empty list; the disk's errors; INVALID_ARGUMENT
// (reason BAD_SECURITY) for an unusable file of tokens.
absl::StatusOr<int64_t> WriteWorkerTasks(const WorkerTasksRequest& request);

}  // namespace syncopate::data
