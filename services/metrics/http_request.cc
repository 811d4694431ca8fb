#include "services/metrics/http_request.h"

#include <algorithm>
#include <cctype>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace syncopate::services {
namespace {

bool IsMethod(absl::string_view word) {
  return !word.empty() && word.size() <= 16 &&
         std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isupper(c) != 0 || c == '-'; });
}

int RequestLineCode(absl::string_view line) {
  size_t first = line.find(' ');
  size_t last = line.rfind(' ');
  if (first == absl::string_view::npos || first == last) return 400;
  absl::string_view method = line.substr(0, first);
  absl::string_view target = line.substr(first + 1, last - first - 1);
  absl::string_view version = line.substr(last + 1);
  if (!IsMethod(method) || (version != "HTTP/1.1" && version != "HTTP/1.0")) return 400;
  if (target.empty() || target[0] != '/' || absl::StrContains(target, " ")) return 400;
  if (method != "GET") return 405;
  return target.substr(0, target.find('?')) == "/metrics" ? 200 : 404;
}

const char* Reason(int code) {
  switch (code) {
    case 200:
      return "OK";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 431:
      return "Request Header Fields Too Large";
    default:
      return "Bad Request";
  }
}

}  // namespace

int HttpAnswerCode(absl::string_view received) {
  size_t end_of_line = received.find('\n');
  if (end_of_line != absl::string_view::npos) {
    int code = RequestLineCode(absl::StripSuffix(received.substr(0, end_of_line), "\r"));
    if (code == 400) return code;  // not HTTP: nothing to wait for
    if (absl::StrContains(received, "\r\n\r\n") || absl::StrContains(received, "\n\n")) {
      return received.size() > kMaxHttpRequestBytes ? 431 : code;
    }
  } else if (!received.empty() && std::isupper(static_cast<unsigned char>(received[0])) == 0) {
    return 400;
  }
  return received.size() > kMaxHttpRequestBytes ? 431 : 0;
}

std::string HttpAnswer(int code, const std::string& body) {
  std::string text =
      code == 200 ? body : absl::StrCat(code, " ", Reason(code), ": this port answers GET /metrics only\n");
  return absl::StrCat(
      "HTTP/1.1 ", code, " ", Reason(code),
      "\r\nContent-Type: ", code == 200 ? "text/plain; version=0.0.4; charset=utf-8" : "text/plain; charset=utf-8",
      "\r\nContent-Length: ", text.size(), code == 405 ? "\r\nAllow: GET" : "", "\r\nConnection: close\r\n\r\n", text);
}

}  // namespace syncopate::services
