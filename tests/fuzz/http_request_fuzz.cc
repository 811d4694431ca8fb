// Parses the untrusted request that a responder's port gets, piece by piece: a decided answer stays, whatever follows,
// and a page is closed by its own length.
#include <cstdlib>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/http/http_request.h"
#include "tests/fuzz/fuzz_target.h"

SYNCOPATE_FUZZ_TARGET(http_request) {
  const absl::string_view all(reinterpret_cast<const char*>(data), size);
  const syncopate::HttpRequest whole = syncopate::ReadHttpRequest(all);
  static const std::set<int> kCodes = {0, 200, 400, 405, 413, 431};
  if (kCodes.count(whole.code) == 0) std::abort();
  if (whole.code == 0 && size > syncopate::kMaxHttpRequestBytes) std::abort();
  if (whole.code == 200 && (whole.path.empty() || whole.path[0] != '/' || absl::StrContains(whole.path, '?')))
    std::abort();
  // Once a piece has decided the answer, no later piece changes it.
  int settled = 0;
  for (size_t end = 1; end <= size && settled == 0; end += 1 + end / 8) {
    settled = syncopate::ReadHttpRequest(all.substr(0, end)).code;
    if (settled == 200 && whole.code != 200) std::abort();
  }
  (void)syncopate::QueryValue(whole.query, "token");
  const std::string page = syncopate::HttpPage(200, "text/plain", whole.path + whole.query);
  if (!absl::StrContains(page, absl::StrCat("Content-Length: ", whole.path.size() + whole.query.size(), "\r\n")))
    std::abort();
  return 0;
}
