#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace syncopate::telemetry {

// Longest request, line and headers together, that the metrics responder reads.
constexpr size_t kMaxHttpRequestBytes = 4096;

// What is known of a request from what a client has sent so far.
struct HttpRequest {
  int code = 0;      // 0 while it may still become complete; 200: answer `path`; else the HTTP status to refuse it with
  std::string path;  // of a GET, without its query
};

// Refuses with 405 another method than GET, with 400 what is not HTTP/1.x, with 413 a request that announces a body,
// with 431 one over kMaxHttpRequestBytes. Reads nothing else of the headers.
HttpRequest ReadHttpRequest(absl::string_view received);

// A complete answer that closes the connection: a page of the responder's.
std::string HttpPage(int code, const std::string& content_type, const std::string& body);
// The same for a request that is refused, with a line that says why.
std::string HttpRefusal(int code);

}  // namespace syncopate::telemetry
