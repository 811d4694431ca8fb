#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "trainer/data/records.h"

namespace syncopate::trainer {

// The encoding of the trainer's data records in its log and its checkpoints. Decoding checks everything: DATA_LOSS
// (reason BAD_RECORD or BAD_SNAPSHOT) says what is wrong. What was encoded once is decoded for ever. Thread-safe.
class RecordCodec {
 public:
  virtual ~RecordCodec() = default;
  virtual std::string EncodeLogRecord(const LogRecord& record) const = 0;
  virtual absl::StatusOr<LogRecord> DecodeLogRecord(absl::string_view bytes) const = 0;
  virtual std::string EncodeDataState(const DataState& state) const = 0;
  virtual absl::StatusOr<DataState> DecodeDataState(absl::string_view bytes) const = 0;
};

}  // namespace syncopate::trainer
