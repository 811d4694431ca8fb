#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace syncopate::data {

// Writes each row of the parquet files as one JSON object a line to `output`, which appears whole or not at all: numbers,
// texts, lists, structs and maps as they are, binary data as text where it is UTF-8, dates, times and decimals as Arrow
// writes them, and what is missing as null. Gives the number of rows. A batch of rows is in memory at a time.
// INVALID_ARGUMENT (reason BAD_PARQUET) with file and cause, also for a column that JSON cannot hold; ALREADY_EXISTS
// (reason FILE_EXISTS) if `output` is there; the disk's errors.
absl::StatusOr<int64_t> ConvertToJsonl(const std::vector<std::string>& files, const std::string& output);

}  // namespace syncopate::data
