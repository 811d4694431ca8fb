#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace syncopate::services {

// Longest request, line and headers together, that the metrics responder reads.
constexpr size_t kMaxHttpRequestBytes = 4096;

// What to answer to what a client has sent so far: 0 while the request may still become complete, else an HTTP status
// code: 200 for GET /metrics (a query is ignored), 404 for another path, 405 for another method, 400 for what is not
// HTTP/1.x, 431 for a request over kMaxHttpRequestBytes. Reads nothing but the request line and the end of the headers.
int HttpAnswerCode(absl::string_view received);

// A complete answer that closes the connection. `body` is sent with code 200 only; errors carry a line that says why.
std::string HttpAnswer(int code, const std::string& body);

}  // namespace syncopate::services
