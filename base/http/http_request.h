#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace syncopate {

// Default limit of a request's bytes, request line and headers together.
constexpr size_t kMaxHttpRequestBytes = 4096;

// A request, as far as the client has sent it.
struct HttpRequest {
  int code = 0;  // 0 while it may still become complete; 200: answer `path`; else the HTTP status to refuse it with
  std::string path = {};   // path of a GET, without the query
  std::string query = {};  // the text after the ?
  std::string host = {};   // the Host header; "" without one, and with more than one
};

// Parses the bytes received so far. Refuses a method other than GET with 405, anything but HTTP/1.x with 400, a request
// that announces a body with 413, one over `max_bytes` with 431. Reads no other header than those this needs, and Host.
HttpRequest ReadHttpRequest(absl::string_view received, size_t max_bytes = kMaxHttpRequestBytes);

// The value of `name` in a query such as "a=1&b=2", not unescaped; "" if it is missing.
std::string QueryValue(absl::string_view query, absl::string_view name);

// A complete HTTP response with one page; it closes the connection. `headers`: further header lines, each without its
// line end.
std::string HttpPage(int code, const std::string& content_type, const std::string& body,
                     const std::vector<std::string>& headers = {});
// The HTTP response that refuses a request, with one line that says why; `pages` names the existing pages.
std::string HttpRefusal(int code, const std::string& pages);

}  // namespace syncopate
