#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "synchronizer/messages.h"

// The messages between the fault test and its peers, real processes with one member each: one JSON object in each
// packet of a SOCK_SEQPACKET socket.
//   -> {"do": "stage", "step"}                   <- {"digests": [hex]}
//   -> {"do": "prepare", attempt...}             <- {"rendezvous"}
//   -> {"do": "transfer", attempt..., "die"?}    <- {"moved": attempt, "reason"}      later
//   -> {"do": "install", "attempt"}              <- {"reason"}
//   -> {"do": "finish", "attempt"}               nothing
//   -> {"do": "check"}                           <- {"reason", "serving": step}
// "reason" is "" for OK, else the reason of the error. "die": {"signal", "at": "start" | "arrival" | "after_ms" |
// "received", "n"}.
namespace syncopate::synchronizer {

using Json = nlohmann::json;

inline absl::Status SendJson(int socket, const Json& message) {
  const std::string text = message.dump();
  if (::send(socket, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size())) {
    return absl::OkStatus();
  }
  return Error(absl::StatusCode::kUnavailable, "PEER_LOST", std::strerror(errno));
}

// The next object; DEADLINE_EXCEEDED if none comes in time, UNAVAILABLE (reason PEER_LOST) if none can come.
inline absl::StatusOr<Json> ReceiveJson(int socket, absl::Duration timeout) {
  pollfd ready{socket, POLLIN, 0};
  const int count = ::poll(&ready, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout)));
  if (count == 0) return Error(absl::StatusCode::kDeadlineExceeded, "DEADLINE", "the peer says nothing");
  std::string text(1 << 20, '\0');
  const ssize_t size = ::recv(socket, text.data(), text.size(), 0);
  if (size <= 0) return Error(absl::StatusCode::kUnavailable, "PEER_LOST", "the peer is gone");
  text.resize(static_cast<size_t>(size));
  Json parsed = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_object()) return parsed;
  return Error(absl::StatusCode::kInvalidArgument, "BAD_MESSAGE", text);
}

inline Json ToJson(const std::vector<SyncMember>& members) {
  Json list = Json::array();
  for (const SyncMember& member : members) {
    list.push_back({{"role", member.id.role},
                    {"replica", member.id.replica_id},
                    {"rank", member.id.rank},
                    {"world", member.id.world},
                    {"incarnation", member.id.incarnation},
                    {"rendezvous", member.rendezvous}});
  }
  return list;
}

inline std::vector<SyncMember> GetMembers(const Json& list) {
  std::vector<SyncMember> members;
  for (const Json& member : list) {
    members.push_back(
        {{member.at("role"), member.at("replica"), member.at("rank"), member.at("world"), member.at("incarnation")},
         member.at("rendezvous")});
  }
  return members;
}

inline Json ToJson(const std::vector<uint64_t>& digests) {
  Json list = Json::array();
  for (uint64_t digest : digests) list.push_back(absl::StrFormat("%016x", digest));
  return list;
}

inline std::vector<uint64_t> ComputeDigests(const Json& list) {
  std::vector<uint64_t> digests;
  for (const Json& digest : list) digests.push_back(std::stoull(digest.get<std::string>(), nullptr, 16));
  return digests;
}

inline Json ToJson(const Prepare& prepare) {
  return {{"do", "prepare"},
          {"attempt", prepare.attempt},
          {"step", prepare.version.step},
          {"digest", absl::StrFormat("%016x", prepare.digest)},
          {"fingerprint", absl::StrFormat("%016x", prepare.manifest_fingerprint)},
          {"plan", absl::StrFormat("%016x", prepare.plan_hash)},
          {"transport", prepare.transport},
          {"deadline_ms", absl::ToInt64Milliseconds(prepare.deadline)},
          {"receivers", prepare.receivers},
          {"sources", prepare.sources},
          {"group", prepare.group},
          {"source_layout", prepare.source_layout},
          {"destination_layout", prepare.destination_layout}};
}

inline Prepare MakePrepare(const Json& json) {
  auto hex = [&json](const char* key) { return std::stoull(json.at(key).get<std::string>(), nullptr, 16); };
  Prepare prepare;
  prepare.attempt = json.at("attempt");
  prepare.version = {1, json.at("step")};
  prepare.digest = hex("digest");
  prepare.manifest_fingerprint = hex("fingerprint");
  prepare.plan_hash = hex("plan");
  prepare.transport = json.at("transport");
  prepare.deadline = absl::Milliseconds(json.at("deadline_ms").get<int64_t>());
  prepare.receivers = json.at("receivers");
  prepare.sources = json.at("sources");
  prepare.group = json.at("group");
  prepare.source_layout = json.at("source_layout");
  prepare.destination_layout = json.at("destination_layout");
  return prepare;
}

inline Json ToJson(const Transfer& transfer) {
  return {{"do", "transfer"},
          {"attempt", transfer.attempt},
          {"group", transfer.group},
          {"sources", ToJson(transfer.sources)},
          {"receivers", ToJson(transfer.receivers)},
          {"digests", ToJson(transfer.bucket_digests)}};
}

inline Transfer TransferFor(const Json& json) {
  Transfer transfer;
  transfer.attempt = json.at("attempt");
  transfer.group = json.at("group");
  transfer.sources = GetMembers(json.at("sources"));
  transfer.receivers = GetMembers(json.at("receivers"));
  transfer.bucket_digests = ComputeDigests(json.at("digests"));
  return transfer;
}

// The case that all processes of the test share: two shards to whole replicas, so big that a fault can hit the middle.
inline constexpr char kFaultSourceLayout[] = "flat:2";
inline constexpr char kFaultDestinationLayout[] = "whole:1";
inline constexpr int64_t kFaultModelWidth = 64;  // makes a model of 2.8 GB

}  // namespace syncopate::synchronizer
