#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace syncopate::data {

// Writes each row of the parquet files as one JSON object a line to `output`, which appears complete or not at all.
// Numbers, texts, lists, structs and maps become their JSON equivalents; binary data become text where they are UTF-8;
// dates, times and decimals are written as Arrow prints them; missing values become null. Returns the number of rows.
// One batch of rows is in memory at a time. INVALID_ARGUMENT (reason BAD_PARQUET) with file and cause, also for a
// column that JSON cannot express; ALREADY_EXISTS (reason FILE_EXISTS) if `output` exists; the disk's errors.
absl::StatusOr<int64_t> ConvertToJsonl(const std::vector<std::string>& files, const std::string& output);

}  // namespace syncopate::data
