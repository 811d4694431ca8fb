#include "bench/sync/peer_options.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/strict_json.h"

namespace syncopate::bench {
namespace {

using nlohmann::json;

absl::Status BadOption(const std::string& key) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_PEER_OPTIONS",
               absl::StrCat("'", key, "' is missing or of another type; this program is started by 'syncopate bench'"));
}

absl::Status Read(const json& object, const char* key, std::string* value) {
  auto found = object.find(key);
  if (found == object.end() || !found->is_string()) return BadOption(key);
  *value = found->get<std::string>();
  return absl::OkStatus();
}

template <typename Integer>
absl::Status Read(const json& object, const char* key, Integer* value) {
  auto found = object.find(key);
  if (found == object.end() || !found->is_number_integer()) return BadOption(key);
  *value = found->get<Integer>();
  return absl::OkStatus();
}

}  // namespace

std::string ToJsonText(const PeerOptions& options) {
  const json object = {{"role", options.role == PeerOptions::Role::kSource ? 0 : 1},
                       {"model", options.model},
                       {"synchronizer", options.synchronizer},
                       {"run_dir", options.run_dir},
                       {"rank", options.rank},
                       {"world", options.world},
                       {"start", options.start},
                       {"replica", options.replica},
                       {"source_layout", options.source_layout},
                       {"receiver_layout", options.receiver_layout},
                       {"device", options.device},
                       {"transport", options.transport},
                       {"install", options.install},
                       {"chunk_bytes", options.chunk_bytes},
                       {"decode", options.decode ? 1 : 0},
                       {"shared_device", options.shared_device ? 1 : 0}};
  return object.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
}

absl::StatusOr<PeerOptions> ParsePeerOptions(const std::string& text) {
  SYNCOPATE_ASSIGN_OR_RETURN(const json object, ParseStrictJson(text, {}));
  PeerOptions options;
  int role = 0;
  int decode = 0;
  int shared_device = 0;
  // Every option is required: bench and peer are programs of one build, so a missing one is an error.
  for (const absl::Status& status :
       {Read(object, "role", &role), Read(object, "model", &options.model),
        Read(object, "synchronizer", &options.synchronizer), Read(object, "run_dir", &options.run_dir),
        Read(object, "rank", &options.rank), Read(object, "world", &options.world),
        Read(object, "start", &options.start), Read(object, "replica", &options.replica),
        Read(object, "source_layout", &options.source_layout),
        Read(object, "receiver_layout", &options.receiver_layout), Read(object, "device", &options.device),
        Read(object, "transport", &options.transport), Read(object, "install", &options.install),
        Read(object, "chunk_bytes", &options.chunk_bytes), Read(object, "decode", &decode),
        Read(object, "shared_device", &shared_device)}) {
    SYNCOPATE_RETURN_IF_ERROR(status);
  }
  options.role = role == 0 ? PeerOptions::Role::kSource : PeerOptions::Role::kReceiver;
  options.decode = decode != 0;
  options.shared_device = shared_device != 0;
  if (options.world < 1 || options.rank < 0 || options.rank >= options.world) return BadOption("rank");
  return options;
}

}  // namespace syncopate::bench
