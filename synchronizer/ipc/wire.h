#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "base/policy_version.h"
#include "synchronizer/lent_memory.h"

// The messages of the transport "ipc" over a Unix socket, between a reader (downstream) and the process with the bytes
// (upstream: a source, or a replica that relays). One message in each packet, little-endian; strings and lists are
// preceded by their length:
//   byte 0      kind
//   bytes 1-4   kWireVersion
//   ...         the fields in the order of their declaration
namespace syncopate::synchronizer::ipc {

inline constexpr uint32_t kWireVersion = 2;
inline constexpr size_t kMaxMessageBytes = 8192;
inline constexpr size_t kMaxHandles = 250;  // SCM_RIGHTS carries at most 253 descriptors

inline constexpr char kHostMemory[] = "cpu";  // Want::device

// Downstream requests the memory of one attempt. Upstream answers with Grant or Refusal.
struct Want {
  int64_t attempt = 0;
  PolicyVersion version;
  uint64_t fingerprint = 0;    // of the manifest
  uint64_t mapped_memory = 0;  // id of the memory that downstream expects, if it has mapped that already; else 0
  std::string device = {};     // where the memory must lie: UUID of a GPU, or kHostMemory; "": anywhere
  uint64_t borrower = 0;       // random, the same in all requests of one process; 0: not told
  friend bool operator==(const Want&, const Want&) = default;
};

// Upstream lends its memory. Its descriptors are in the same packet, unless downstream has mapped the memory.
struct Grant {
  int64_t attempt = 0;
  MemoryInfo memory;
  bool complete = false;          // all bytes are there; else see `progress` and later Progress messages
  std::vector<int64_t> progress;  // see Progress
  bool with_handles = false;
  friend bool operator==(const Grant&, const Grant&) = default;
};

// By source rank: how many of the source's bytes upstream has now, in the order of the plan's copies.
struct Progress {
  int64_t attempt = 0;
  std::vector<int64_t> bytes;
  friend bool operator==(const Progress&, const Progress&) = default;
};

// Upstream lends nothing, or withdraws its memory: bytes read from now on may be wrong.
struct Refusal {
  int64_t attempt = 0;
  int32_t code = 0;  // absl::StatusCode
  std::string reason;
  std::string message;
  friend bool operator==(const Refusal&, const Refusal&) = default;
};

// Downstream has stopped reading in this attempt.
struct Release {
  int64_t attempt = 0;
  friend bool operator==(const Release&, const Release&) = default;
};

using Message = std::variant<Want, Grant, Progress, Refusal, Release>;

// At most kMaxMessageBytes: long texts of a Refusal are cut.
std::string Encode(const Message& message);

// INVALID_ARGUMENT reason BAD_MESSAGE for a packet that Encode cannot produce: another version, an unknown kind,
// lengths that do not fit, bytes left over.
absl::StatusOr<Message> Decode(const std::string& packet);

Refusal GetRefusal(int64_t attempt, const absl::Status& why);
absl::Status MakeStatus(const Refusal& refusal);  // never OK

}  // namespace syncopate::synchronizer::ipc
