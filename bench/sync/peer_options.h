#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace syncopate::bench {

// The options of one process of a benchmark, which it gets as a JSON object in its only argument.
struct PeerOptions {
  enum class Role : uint8_t { kSource, kReceiver };
  Role role = Role::kSource;
  std::string model;
  std::string synchronizer;   // host:port
  std::string run_dir;        // folder for sockets
  int32_t rank = 0;           // source: among the sources; receiver: within its replica
  int32_t world = 1;          // number of ranks in that group
  std::string start;          // source: synchronizer::Hello::start
  int32_t replica = 0;        // receiver
  std::string source_layout;  // descriptors of both sides' layouts
  std::string receiver_layout;
  int32_t device = -1;         // GPU; -1: host memory
  bool shared_device = false;  // shared with other processes of the benchmark
  std::string transport;       // the only offered transport; "auto": all that the device has
  std::string install = "remap";
  int64_t chunk_bytes = 0;
  bool decode = true;
};

std::string ToJsonText(const PeerOptions& options);
// INVALID_ARGUMENT reason BAD_PEER_OPTIONS.
absl::StatusOr<PeerOptions> ParsePeerOptions(const std::string& text);

}  // namespace syncopate::bench
