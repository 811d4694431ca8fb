#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "trainer/record/flow_file.h"

namespace syncopate::trainerd {

// FlowSums as bytes (message FlowSums of proto/syncopate/v1/records.proto). Decoding checks everything: DATA_LOSS
// (reason BAD_FLOW).
std::string EncodeFlowSums(const trainer::FlowSums& sums);
absl::StatusOr<trainer::FlowSums> DecodeFlowSums(absl::string_view bytes);
inline constexpr trainer::FlowCodec kFlowCodec = {EncodeFlowSums, DecodeFlowSums};

}  // namespace syncopate::trainerd
