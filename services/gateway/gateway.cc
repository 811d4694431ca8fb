#include "services/gateway/gateway.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/host_port.h"
#include "base/status.h"
#include "services/endpoint/answer_writer.h"
#include "services/gateway/passage.h"

namespace syncopate::gateway {
namespace {

http::Response Refusal(int code, const std::string& message) {
  http::Response response = {.code = code, .body = endpoint::ErrorBody(code, message)};
  if (code == 503) response.headers.emplace_back("Retry-After", "1");
  if (code == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Gateway>> Gateway::Start(Options options) {
  SYNCOPATE_ASSIGN_OR_RETURN(const HostPort place, ParseListenAddress(options.address));
  if (options.judge == nullptr && !place.IsLoopback()) {
    return Error(absl::StatusCode::kInvalidArgument, "NOT_LOOPBACK",
                 absl::StrCat("the gateway is not served on ", place.ToString(),
                              ": without tokens it lets every caller in, so only this machine may reach it; give a "
                              "loopback address, or tokens"));
  }
  std::unique_ptr<Gateway> gateway(new Gateway(std::move(options)));
  Gateway* const self = gateway.get();
  SYNCOPATE_ASSIGN_OR_RETURN(gateway->upstream_,
                             Upstream::Start({.connect_timeout = gateway->options_.connect_timeout}));
  SYNCOPATE_ASSIGN_OR_RETURN(
      gateway->server_, http::HttpServer::Start(
                            {.what = "the gateway", .address = place.ToString()},
                            [self](const http::Request& request) { return self->Guard(request); },
                            [](int code, const std::string& message) { return endpoint::ErrorBody(code, message); },
                            [self](std::shared_ptr<http::Exchange> exchange) { self->Handle(exchange); }));
  return gateway;
}

std::string Gateway::url() const { return absl::StrCat("http://", server_->endpoint().ToString(), "/v1"); }

void Gateway::Stop() {
  if (server_ != nullptr) server_->Stop();
  upstream_.reset();
}

http::Response Gateway::Guard(const http::Request& request) const {
  // The path becomes a part of a URL, in which an '@' before the first '/' would name another host.
  const bool is_plain =
      absl::StartsWith(request.path, "/") && std::all_of(request.path.begin(), request.path.end(), [](char c) {
        return absl::ascii_isgraph(static_cast<unsigned char>(c)) && !absl::StrContains("?#%\\", c);
      });
  if (!is_plain) {
    return Refusal(400, "the path must begin with / and have visible ASCII characters alone, without ?, #, % and \\");
  }
  if (request.method != "GET" && request.method != "POST") {
    http::Response response = Refusal(405, "GET and POST are passed on");
    response.headers.emplace_back("Allow", "GET, POST");
    return response;
  }
  if (options_.judge == nullptr) {
    // No page of a browser may reach it under a name of its own: an endpoint sees the gateway's Host.
    if (http::NamesThisMachine(request.host, request.port)) return {};
    return Refusal(421, "this gateway is for this machine alone: the Host header must name it by a loopback address");
  }
  if (request.path == "/health") return {};
  const absl::Status judged = options_.judge(request.authorization);
  return judged.ok() ? http::Response() : Refusal(endpoint::HttpCode(judged), std::string(judged.message()));
}

void Gateway::Handle(const std::shared_ptr<http::Exchange>& exchange) {
  if (exchange->request().path == "/health") {
    return exchange->Respond([response = Health()] { return response; });
  }
  const auto body_bytes = static_cast<int64_t>(exchange->request().body.size());
  if (*body_bytes_ + body_bytes > options_.max_body_bytes) {
    return exchange->Respond([] { return Refusal(503, "the requests that are under way are too large together"); });
  }
  std::make_shared<Passage>(exchange, backends_, upstream_.get(), body_bytes_)->Begin();
}

http::Response Gateway::Health() const {
  const size_t count = backends_->addresses().size();
  if (count == 0) return Refusal(503, "no rollouter of the run serves an endpoint now");
  return {.body = absl::StrCat("{\"status\":\"ok\",\"endpoints\":", count, "}")};
}

}  // namespace syncopate::gateway
