#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "trainer/data/records.h"

// The trainer's data records as bytes (proto/syncopate/v1/records.proto). Decoding trusts nothing: DATA_LOSS (reason
// BAD_RECORD or BAD_SNAPSHOT) says what is wrong. Pure functions.
namespace syncopate::trainerd {

std::string EncodeLogRecord(const trainer::LogRecord& record);  // a TrainerLogRecord
absl::StatusOr<trainer::LogRecord> DecodeLogRecord(absl::string_view bytes);

std::string EncodeDataState(const trainer::DataState& state);  // a DataState
absl::StatusOr<trainer::DataState> DecodeDataState(absl::string_view bytes);

}  // namespace syncopate::trainerd
