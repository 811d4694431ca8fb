#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "trainer/data/record_codec.h"
#include "trainer/data/records.h"

// The trainer's data records as messages of proto/syncopate/v1/records.proto; errors as in RecordCodec. Pure functions.
namespace syncopate::trainerd {

std::string EncodeLogRecord(const trainer::LogRecord& record);  // a TrainerLogRecord
absl::StatusOr<trainer::LogRecord> DecodeLogRecord(absl::string_view bytes);

std::string EncodeDataState(const trainer::DataState& state);  // a DataState
absl::StatusOr<trainer::DataState> DecodeDataState(absl::string_view bytes);

// These functions as a RecordCodec of the trainer. The object lives until the process ends.
const trainer::RecordCodec& ProtoRecordCodec();

}  // namespace syncopate::trainerd
