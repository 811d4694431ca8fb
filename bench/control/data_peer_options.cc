#include "bench/control/data_peer_options.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/strict_json.h"
#include "bench/process/json_fields.h"

namespace syncopate::bench {

std::string ToJsonText(const DataPeerOptions& options) {
  const nlohmann::json object = {
      {"folder", options.folder},   {"listen", options.listen},     {"batch_groups", options.batch_groups},
      {"samples", options.samples}, {"tls_cert", options.tls.cert}, {"tls_key", options.tls.key},
      {"tls_ca", options.tls.ca}};
  return object.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
}

absl::StatusOr<DataPeerOptions> ParseDataPeerOptions(const std::string& text) {
  SYNCOPATE_ASSIGN_OR_RETURN(const nlohmann::json object, ParseStrictJson(text, {}));
  DataPeerOptions options;
  if (object.is_object()) {
    options.folder = TextIn(object, "folder");
    options.listen = TextIn(object, "listen");
    options.batch_groups = static_cast<int32_t>(IntegerIn(object, "batch_groups"));
    options.samples = static_cast<int32_t>(IntegerIn(object, "samples"));
    options.tls = {TextIn(object, "tls_cert"), TextIn(object, "tls_key"), TextIn(object, "tls_ca")};
  }
  if (!options.folder.empty() && !options.listen.empty() && options.batch_groups > 0 && options.samples > 0) {
    return options;
  }
  return Error(absl::StatusCode::kInvalidArgument, "BAD_PEER_OPTIONS",
               absl::StrCat("these options name no folder, address, batch or samples: ", text));
}

}  // namespace syncopate::bench
