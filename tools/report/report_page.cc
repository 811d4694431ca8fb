#include "tools/report/report_page.h"

#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/sha256.h"
#include "tools/report/page_parts.inc"
#include "trainer/record/step_figure_table.h"

namespace syncopate::report {
namespace {

using nlohmann::json;

std::string Script() { return absl::StrCat(kChartScript, kPageScript); }

// The source of an inline script or style in a content security policy: its digest.
std::string GetSource(absl::string_view text) {
  return absl::StrCat("'sha256-", absl::Base64Escape(absl::HexStringToBytes(Sha256Hex(text))), "'");
}

json Vocabulary() {
  json list = json::array();
  for (const trainer::StepFigure& figure : trainer::StepFigureTable()) {
    list.push_back({{"name", figure.name}, {"group", figure.group}, {"unit", figure.unit}, {"help", figure.help}});
  }
  return list;
}

}  // namespace

std::string EscapedJson(const json& value) {
  // JSON has these characters only inside strings, where an escape means the same.
  return absl::StrReplaceAll(
      value.dump(-1, ' ', false, json::error_handler_t::replace),
      {{"<", "\\u003c"}, {">", "\\u003e"}, {"&", "\\u0026"}, {"\xe2\x80\xa8", "\\u2028"}, {"\xe2\x80\xa9", "\\u2029"}});
}

std::string PagePolicy(bool live) {
  return absl::StrCat("default-src 'none'; base-uri 'none'; form-action 'none'; style-src ", GetSource(kStyle),
                      "; script-src ", GetSource(Script()), live ? "; connect-src 'self'" : "");
}

std::string MakePage(const std::vector<json>& runs, const PageOptions& options) {
  const json data = {{"made", options.made}, {"live", options.live}, {"vocabulary", Vocabulary()}, {"runs", runs}};
  // In one pass, so that a mark inside the data is not replaced.
  return absl::StrReplaceAll(kPage, {{"@@POLICY@@", PagePolicy(options.live)},
                                     {"@@STYLE@@", kStyle},
                                     {"@@SCRIPT@@", Script()},
                                     {"@@DATA@@", EscapedJson(data)}});
}

}  // namespace syncopate::report
