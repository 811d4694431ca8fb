#pragma once

#include <gtest/gtest.h>

#include <string>
#include <variant>

#include "trainer/checkpoint/checkpoint_store.h"

namespace syncopate::testing {

// The bytes that a file of a checkpoint would have, for contents that write themselves.
inline std::string GetBytes(const trainer::CheckpointStore::Contents& contents) {
  std::string bytes;
  auto sink = [&bytes](absl::string_view piece) {
    bytes.append(piece.data(), piece.size());
    return absl::OkStatus();
  };
  EXPECT_TRUE(std::get<1>(contents)(sink).ok());
  return bytes;
}

}  // namespace syncopate::testing
