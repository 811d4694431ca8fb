#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace syncopate::data {

struct WorkerTasksRequest {
  std::string worker;                          // "unix:PATH" or host:port of a loopback address
  std::string list;                            // name of a list of tasks that it has
  std::string output;                          // file of JSON lines, which is not there yet
  absl::Duration timeout = absl::Minutes(10);  // of the whole list
  int64_t max_row_bytes = 8 << 20;             // what data.files takes
  std::string token_file = {};                 // whose token of the trainer is shown at host:port; "": none
};

// Writes the rows of a worker's list of tasks, in its order, as a file for data.files, and returns how many; blocks.
// The file appears whole or not at all. Errors: ALREADY_EXISTS (reason FILE_TAKEN); UNAVAILABLE, DEADLINE_EXCEEDED or
// NOT_FOUND as the worker says; DATA_LOSS (reason BAD_TASK) naming the task whose row is no JSON object or is too long;
// FAILED_PRECONDITION (reason NO_TASKS) for a list without any; the disk's; INVALID_ARGUMENT (reason BAD_SECURITY) for a
// file of tokens that cannot be used.
absl::StatusOr<int64_t> WriteWorkerTasks(const WorkerTasksRequest& request);

}  // namespace syncopate::data
