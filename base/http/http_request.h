#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace syncopate {

// Longest request, line and headers together, that a responder reads unless it is told another limit.
constexpr size_t kMaxHttpRequestBytes = 4096;

// What is known of a request from what a client has sent so far.
struct HttpRequest {
  int code = 0;  // 0 while it may still become complete; 200: answer `path`; else the HTTP status to refuse it with
  std::string path = {};   // of a GET, without its query
  std::string query = {};  // what follows the ?
  std::string host = {};   // the Host header; "" without one, and with more than one
};

// Refuses with 405 another method than GET, with 400 what is not HTTP/1.x, with 413 a request that announces a body,
// with 431 one over `max_bytes`. Reads nothing else of the headers.
HttpRequest ReadHttpRequest(absl::string_view received, size_t max_bytes = kMaxHttpRequestBytes);

// The value of `name` in a query such as "a=1&b=2", as it is written there; "" if it has none.
std::string QueryValue(absl::string_view query, absl::string_view name);

// A complete answer that closes the connection: a page of a responder's. `headers`: more of them, each a line without
// its end.
std::string HttpPage(int code, const std::string& content_type, const std::string& body,
                     const std::vector<std::string>& headers = {});
// The same for a request that is refused, with a line that says why: `pages` are those that there are.
std::string HttpRefusal(int code, const std::string& pages);

}  // namespace syncopate
