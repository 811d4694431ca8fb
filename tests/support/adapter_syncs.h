#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "model/model_config.h"
#include "tests/support/run_harness.h"
#include "tests/support/small_model.h"
#include "tests/support/status_matchers.h"

// What the syncs of a run with adapters brought, for tests of who is sent the base weights and who is not.
namespace syncopate::testing {

struct WireBytes {
  int64_t base = 0;
  int64_t padded_base = 0;  // with the alignment gaps, which may count too
  int64_t adapters = 0;
};

// The bytes of the example's model with adapters of this rank, whose tensors leave no gaps.
inline WireBytes CountWireBytes(int64_t rank) {
  const Manifest manifest = *model::MakeWireManifest(WithAdapters(SmallModel(), rank), DType::kFloat32);
  WireBytes bytes;
  for (size_t i = 0; i < manifest.tensors().size(); ++i) {
    const TensorSpec& spec = manifest.tensors()[i];
    (spec.adapter ? bytes.adapters : bytes.base) += spec.NumBytes();
    if (!spec.adapter) bytes.padded_base = manifest.ranges()[i].end + Manifest::kAlignment;
  }
  return bytes;
}

// JSON of a protobuf message has 64-bit numbers as text.
inline int64_t GetNumber(const Json& value) {
  return value.is_string() ? std::stoll(value.get<std::string>()) : value.get<int64_t>();
}

// The bytes of one kind that a sync brought.
inline int64_t GetBytes(const Json& sync, const char* kind) {
  const Json& bytes = sync["bytes_by_kind"];
  return bytes.contains(kind) ? GetNumber(bytes[kind]) : 0;
}

// The syncs of a replica that are on record, in order, whatever their results.
inline std::vector<Json> ReadSyncs(RunHarness& run, const std::string& replica) {
  const auto printed = run.Ctl({"syncs", "--last", "1000", "--json"});
  EXPECT_THAT(printed, IsOk());
  std::vector<Json> syncs;
  if (!printed.ok()) return syncs;
  for (const Json& line : JsonLines(printed->output)) {
    if (line["replica_id"] == replica) syncs.push_back(line);
  }
  return syncs;
}

}  // namespace syncopate::testing
