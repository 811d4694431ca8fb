#include "base/http/http_request.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace syncopate {
namespace {

bool IsMethod(absl::string_view word) {
  return !word.empty() && word.size() <= 16 &&
         std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isupper(c) != 0 || c == '-'; });
}

// Understands as much HTTP as a scraper and a browser need, and is strict: a request that it does not understand is
// refused at its first line, without waiting for the rest.
HttpRequest ReadRequestLine(absl::string_view line) {
  size_t first = line.find(' ');
  size_t last = line.rfind(' ');
  if (first == absl::string_view::npos || first == last) return {400, ""};
  absl::string_view method = line.substr(0, first);
  absl::string_view target = line.substr(first + 1, last - first - 1);
  absl::string_view version = line.substr(last + 1);
  if (!IsMethod(method) || (version != "HTTP/1.1" && version != "HTTP/1.0")) return {400, ""};
  if (target.empty() || target[0] != '/' || absl::StrContains(target, " ")) return {400, ""};
  if (method != "GET") return {405, ""};
  const size_t question = target.find('?');
  HttpRequest request{200, std::string(target.substr(0, question))};
  if (question != absl::string_view::npos) request.query = std::string(target.substr(question + 1));
  return request;
}

// Whether the headers of a complete request announce a body.
bool AnnouncesBody(absl::string_view received) {
  for (absl::string_view line : absl::StrSplit(received, '\n')) {
    const std::pair<absl::string_view, absl::string_view> field = absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (absl::EqualsIgnoreCase(field.first, "transfer-encoding")) return true;
    const bool has_length = absl::EqualsIgnoreCase(field.first, "content-length");
    if (has_length && absl::StripAsciiWhitespace(field.second) != "0") return true;
  }
  return false;
}

std::string GetHost(absl::string_view received) {
  std::string host;
  int hosts = 0;
  for (absl::string_view line : absl::StrSplit(received, '\n')) {
    const std::pair<absl::string_view, absl::string_view> field = absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (!absl::EqualsIgnoreCase(field.first, "host")) continue;
    host = std::string(absl::StripAsciiWhitespace(field.second));
    ++hosts;
  }
  // With two Host headers, a request could pass one check by the first and another check by the second.
  return hosts == 1 ? host : "";
}

const char* Reason(int code) {
  switch (code) {
    case 200:
      return "OK";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 421:
      return "Misdirected Request";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    default:
      return "Bad Request";
  }
}

}  // namespace

HttpRequest ReadHttpRequest(absl::string_view received, size_t max_bytes) {
  size_t end_of_line = received.find('\n');
  if (end_of_line != absl::string_view::npos) {
    HttpRequest request = ReadRequestLine(absl::StripSuffix(received.substr(0, end_of_line), "\r"));
    if (request.code == 400) return request;  // not HTTP: nothing to wait for
    const size_t end = std::min(received.find("\r\n\r\n"), received.find("\n\n"));
    if (end != absl::string_view::npos) {
      // Only the headers are read: whether bytes after them have arrived yet must change nothing.
      const absl::string_view headers = received.substr(0, end);
      if (headers.size() > max_bytes) return {431, ""};
      if (request.code == 200 && AnnouncesBody(headers)) return {413, ""};
      request.host = GetHost(headers);
      return request;
    }
  } else if (!received.empty() && std::isupper(static_cast<unsigned char>(received[0])) == 0) {
    // Not HTTP, for example a TLS handshake: refused without waiting for a line end.
    return {400, ""};
  }
  return {received.size() > max_bytes ? 431 : 0, ""};
}

std::string QueryValue(absl::string_view query, absl::string_view name) {
  for (absl::string_view part : absl::StrSplit(query, '&')) {
    const std::pair<absl::string_view, absl::string_view> field = absl::StrSplit(part, absl::MaxSplits('=', 1));
    if (field.first == name) return std::string(field.second);
  }
  return "";
}

std::string HttpPage(int code, const std::string& content_type, const std::string& body,
                     const std::vector<std::string>& headers) {
  std::string more;
  for (const std::string& header : headers) absl::StrAppend(&more, header, "\r\n");
  return absl::StrCat("HTTP/1.1 ", code, " ", Reason(code), "\r\nContent-Type: ", content_type,
                      "\r\nContent-Length: ", body.size(), code == 405 ? "\r\nAllow: GET" : "",
                      "\r\nConnection: close\r\n", more, "\r\n", body);
}

std::string HttpRefusal(int code, const std::string& pages) {
  return HttpPage(code, "text/plain; charset=utf-8",
                  absl::StrCat(code, " ", Reason(code), ": this port answers GET of ", pages, " only\n"));
}

}  // namespace syncopate
