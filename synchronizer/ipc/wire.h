#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "base/policy_version.h"
#include "synchronizer/ipc/exported_memory.h"

// What the two ends of the transport "ipc" say to each other over a Unix socket: a reader (downstream) to whoever holds
// the bytes that it wants (upstream: a source, or a replica that relays). One message a packet, little-endian,
// strings and lists preceded by their length:
//   byte 0      kind
//   bytes 1-4   kWireVersion
//   ...         the fields in the order in which they are declared
namespace syncopate::synchronizer::ipc {

inline constexpr uint32_t kWireVersion = 1;
inline constexpr size_t kMaxMessageBytes = 8192;
inline constexpr size_t kMaxHandles = 250;  // SCM_RIGHTS carries at most 253 descriptors

// Downstream asks for the memory of one attempt. Answered by Grant or Refusal.
struct Want {
  int64_t attempt = 0;
  PolicyVersion version;
  uint64_t fingerprint = 0;    // of the manifest
  uint64_t mapped_memory = 0;  // id of the memory that downstream expects, if it has that mapped already; else 0
  friend bool operator==(const Want&, const Want&) = default;
};

// Upstream lends its memory. The handles travel as descriptors of the same packet, unless downstream has it mapped.
struct Grant {
  int64_t attempt = 0;
  MemoryInfo memory;
  bool complete = false;          // all bytes are there; else `progress` and Progress messages say what is
  std::vector<int64_t> progress;  // as in Progress
  bool with_handles = false;
  friend bool operator==(const Grant&, const Grant&) = default;
};

// By source rank: how many bytes of what comes from it upstream has by now, in the order of the plan's copies.
struct Progress {
  int64_t attempt = 0;
  std::vector<int64_t> bytes;
  friend bool operator==(const Progress&, const Progress&) = default;
};

// Upstream lends nothing, or takes back what it lent: nothing that is read from now on can be relied on.
struct Refusal {
  int64_t attempt = 0;
  int32_t code = 0;  // absl::StatusCode
  std::string reason;
  std::string message;
  friend bool operator==(const Refusal&, const Refusal&) = default;
};

// Downstream reads no more in this attempt.
struct Release {
  int64_t attempt = 0;
  friend bool operator==(const Release&, const Release&) = default;
};

using Message = std::variant<Want, Grant, Progress, Refusal, Release>;

// At most kMaxMessageBytes: long texts of a Refusal are cut.
std::string Encode(const Message& message);

// INVALID_ARGUMENT reason BAD_MESSAGE for anything that Encode does not make: another version, an unknown kind, lengths
// that do not fit, bytes left over.
absl::StatusOr<Message> Decode(const std::string& packet);

Refusal GetRefusal(int64_t attempt, const absl::Status& why);
absl::Status MakeStatus(const Refusal& refusal);  // never OK

}  // namespace syncopate::synchronizer::ipc
