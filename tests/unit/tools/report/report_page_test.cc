#include "tools/report/report_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "trainer/record/step_figure_table.h"

namespace syncopate::report {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

// The text between the tags of the page's data.
std::string MakeData(const std::string& page) {
  const std::string begin = "<script type=\"application/json\" id=\"data\">";
  const size_t at = page.find(begin) + begin.size();
  return page.substr(at, page.find("</script>", at) - at);
}

TEST(ReportPageTest, DataHaveNoCharacterThatMeansSomethingToHtml) {
  const json hostile = {"</script><script>alert(1)</script>", "<!--", "a & b", "\xe2\x80\xa8\xe2\x80\xa9", "]]>"};
  const std::string text = EscapedJson(hostile);
  for (const char* bad : {"<", ">", "&", "\xe2\x80\xa8", "\xe2\x80\xa9"}) EXPECT_THAT(text, Not(HasSubstr(bad)));
  EXPECT_EQ(json::parse(text), hostile);
}

TEST(ReportPageTest, BytesThatAreNotUtf8AreReplaced) { EXPECT_EQ(EscapedJson(json("a\xff")), "\"a\xef\xbf\xbd\""); }

TEST(ReportPageTest, APageHoldsItsDataAndTheVocabulary) {
  const json run = {{"name", "</script> @@SCRIPT@@ $& \\1"}};
  const json data = json::parse(MakeData(MakePage({run}, {.made = "today"})));
  EXPECT_EQ(data["runs"][0], run);
  EXPECT_EQ(data["live"], false);
  EXPECT_EQ(data["vocabulary"].size(), trainer::StepFigureTable().size());
}

TEST(ReportPageTest, NoMarkIsLeftAndNothingIsLoaded) {
  std::string page = MakePage({{{"name", "a"}}}, {});
  EXPECT_THAT(page, Not(HasSubstr("@@")));
  const std::string of_drawings = "http://www.w3.org/2000/svg";  // a namespace, not an address
  page.replace(page.find(of_drawings), of_drawings.size(), "");
  for (const char* bad : {"src=", "href=", "http:", "https:", "@import", "innerHTML", "eval("}) {
    EXPECT_THAT(page, Not(HasSubstr(bad)));
  }
}

TEST(ReportPageTest, ThePolicyAllowsTheOneScriptAndTheOneStyle) {
  const std::string policy = PagePolicy(/*live=*/false);
  EXPECT_THAT(policy, HasSubstr("default-src 'none'"));
  EXPECT_THAT(policy, HasSubstr("script-src 'sha256-"));
  EXPECT_THAT(policy, HasSubstr("style-src 'sha256-"));
  EXPECT_THAT(policy, Not(HasSubstr("unsafe")));
  EXPECT_THAT(policy, Not(HasSubstr("connect-src")));
  EXPECT_THAT(PagePolicy(/*live=*/true), HasSubstr("connect-src 'self'"));
  EXPECT_THAT(MakePage({}, {}), HasSubstr(policy));
}

}  // namespace
}  // namespace syncopate::report
