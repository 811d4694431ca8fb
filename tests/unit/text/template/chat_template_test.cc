#include "text/template/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"

namespace syncopate::text::chat {
namespace {

using Json = nlohmann::ordered_json;
using ::syncopate::testing::HasMessage;
using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

absl::StatusOr<std::string> Rendered(const std::string& source, const Json& context = Json::object(),
                                     const TemplateLimits& limits = {}) {
  SYNCOPATE_ASSIGN_OR_RETURN(ChatTemplate parsed, ChatTemplate::Parse(source));
  SYNCOPATE_ASSIGN_OR_RETURN(RenderedChat rendered, parsed.Render(context, 0, limits));
  return rendered.text;
}

std::string Times(int times, const std::string& text) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

TEST(ChatTemplateTest, NamesWhatItDoesNotDoWhenItIsParsed) {
  struct Case {
    const char* source;
    const char* named;
  };
  for (const Case& one : {
           Case{"{% include 'other' %}", "the tag 'include'"},
           Case{"{% import 'x' as y %}", "the tag 'import'"},
           Case{"{% extends 'x' %}", "the tag 'extends'"},
           Case{"{% raw %}{% endraw %}", "the tag 'raw'"},
           Case{"{% with a = 1 %}{% endwith %}", "the tag 'with'"},
           Case{"{% for a in b recursive %}{% endfor %}", "recursive loops"},
           Case{"\n\n{{ a | batch(3) }}", "line 3: the filter 'batch'"},
           Case{"{% if false %}{{ a | groupby('b') }}{% endif %}", "the filter 'groupby'"},
           Case{"{{ a is sameas b }}", "the test 'sameas'"},
           Case{"{{ a.format(1) }}", "the method 'format'"},
           Case{"{{ a.__class__() }}", "the method '__class__'"},
           Case{"{{ messages.append(1) }}", "the method 'append'"},
           Case{"{% for x in y %}{% macro m() %}{% endmacro %}{% endfor %}", "a macro within a loop"},
           Case{"{{ 99999999999999999999 }}", "beyond 64 bits"},
           Case{"{{ '\\N{BULLET}' }}", "by name"},
       }) {
    EXPECT_THAT(ChatTemplate::Parse(one.source), AllOf(HasReason("BAD_TEMPLATE"), HasMessage(HasSubstr(one.named))))
        << one.source;
  }
}

TEST(ChatTemplateTest, SaysWhereATemplateIsNotWellFormed) {
  for (const char* source : {"{{",
                             "{{ a",
                             "{% if a %}",
                             "{% if %}{% endif %}",
                             "{% endfor %}",
                             "{{ a b }}",
                             "{{ (1 }}",
                             "{{ 'a }}",
                             "{# a",
                             "{% for in b %}",
                             "{{ [1, }}",
                             "{{ {'a' 1} }}",
                             "{{ a[] }}",
                             "{{ a | }}",
                             "{{ a is }}",
                             "{% set %}",
                             "{% set a.b.c = 1 %}",
                             "{% macro %}",
                             "{% break %}",
                             "{% for a in b %}{% set c %}{% break %}{% endset %}{% endfor %}",
                             "{{ \x01 }}",
                             "{{ '\\ud800' }}",
                             "{{ '\\x4' }}",
                             "{{ a.  }}",
                             "{% call 1 %}{% endcall %}",
                             "{{ {1} }}",
                             "{% if a %}{% else %}{% else %}{% endif %}"}) {
    EXPECT_THAT(ChatTemplate::Parse(source), AllOf(HasReason("BAD_TEMPLATE"), HasMessage(HasSubstr("line 1"))))
        << source;
  }
  EXPECT_THAT(ChatTemplate::Parse("a\xC3"), HasReason("BAD_TEMPLATE"));
  EXPECT_THAT(ChatTemplate::Parse(std::string(2 << 20, 'a')), HasReason("BAD_TEMPLATE"));
}

TEST(ChatTemplateTest, DeepNestingIsRefusedInsteadOfEatingTheStack) {
  const int many = 20'000;
  for (const std::string& source :
       {"{{ " + Times(many, "(") + "1" + Times(many, ")") + " }}", "{{ " + Times(many, "[") + Times(many, "]") + " }}",
        "{{ 1" + Times(many, "+1") + " }}", "{{ a" + Times(many, ".b") + " }}", "{{ a" + Times(many, "|trim") + " }}",
        "{{ " + Times(many, "not ") + "1 }}", "{{ " + Times(many, "-") + "1 }}", "{{ a" + Times(many, "[0]") + " }}",
        Times(many, "{% if a %}") + Times(many, "{% endif %}"),
        "{% if a %}" + Times(many, "{% elif b %}") + "{% endif %}", "{{ 1" + Times(many, " if a else 1") + " }}",
        "{{ 1" + Times(many, " < 1") + " }}", "{{ a" + Times(many, " is defined") + " }}"}) {
    EXPECT_THAT(ChatTemplate::Parse(source), HasReason("BAD_TEMPLATE")) << source.substr(0, 20);
  }
}

TEST(ChatTemplateTest, ATreeAsDeepAsTheParserAllowsIsStoppedWhenItIsRendered) {
  std::string deep = "1";
  for (int i = 0; i < 45; ++i) deep = "(" + deep + Times(140, "+1") + ")";
  EXPECT_THAT(ChatTemplate::Parse("{{ " + deep + " }}"), IsOk());
  EXPECT_THAT(Rendered("{{ " + deep + " }}"),
              AllOf(HasReason("TEMPLATE_TOO_COSTLY"), HasMessage(HasSubstr("too deeply"))));
}

TEST(ChatTemplateTest, ATemplateThatWouldGoOnForEverIsStopped) {
  for (const char* source : {
           "{% for a in range(99999999999) %}{% endfor %}",
           "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
           "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
           "{% set ns = namespace(a='x') %}{% for i in range(99) %}{% set ns.a = ns.a + ns.a %}{% endfor %}",
           "{% set ns = namespace(a=[1]) %}{% for i in range(99) %}{% set ns.a = ns.a + ns.a %}{% endfor %}",
           "{% set ns = namespace(a=[]) %}{% for i in range(999) %}{% set ns.a = [ns.a] %}{% endfor %}",
           "{{ 'x' * 99999999999 }}",
           "{% for a in range(999999) %}{{ 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' }}{% endfor %}",
           "{% set a = 'x' * 1000000 %}{% set ns = namespace(b=[]) %}{% for i in range(1000) %}{% set ns.b = ns.b + [a "
           "~ i] %}{% endfor %}",
           "{% set ns = namespace(a='ab') %}{% for i in range(99) %}{% set ns.a = ns.a | replace('a', 'aaaaaaaaaaaaa') "
           "%}{% endfor %}",
           "{{ range(100000) | list | tojson(indent=60) | length * range(10000000) | length }}",
       }) {
    EXPECT_THAT(Rendered(source, Json::object(), {.steps = 200'000, .made_bytes = 16 << 20}),
                HasReason("TEMPLATE_TOO_COSTLY"))
        << source;
  }
  EXPECT_THAT(Rendered("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}"),
              HasReason("TEMPLATE_TOO_COSTLY"));
}

TEST(ChatTemplateTest, LimitsAreThoseThatAreGiven) {
  EXPECT_THAT(Rendered("{% for i in range(10) %}x{% endfor %}", Json::object(), {.steps = 20}),
              HasReason("TEMPLATE_TOO_COSTLY"));
  EXPECT_THAT(Rendered("{% for i in range(10) %}x{% endfor %}", Json::object(), {.output_bytes = 9}),
              HasReason("TEMPLATE_TOO_COSTLY"));
  EXPECT_THAT(Rendered("{% for i in range(10) %}x{% endfor %}", Json::object(), {.output_bytes = 10}), IsOk());
  EXPECT_THAT(Rendered("{{ ((((1)))) }}", Json::object(), {.depth = 3}), IsOk()) << "brackets are no evaluation";
  EXPECT_THAT(Rendered("{{ 1 + (1 + (1 + 1)) }}", Json::object(), {.depth = 4}), HasReason("TEMPLATE_TOO_COSTLY"));
}

TEST(ChatTemplateTest, NothingOutsideOfTheValuesCanBeReached) {
  for (const char* source :
       {"{{ ''.__class__.__mro__ }}", "{{ messages.__class__.__name__ }}", "{{ self.x }}", "{{ cycler.__init__.x }}",
        "{{ namespace.__globals__.os }}", "{{ config.items }}", "{{ [].__class__.__base__ }}"}) {
    EXPECT_THAT(Rendered(source, {{"messages", Json::array()}}), HasReason("TEMPLATE_FAILED")) << source;
  }
}

TEST(ChatTemplateTest, FunctionsCannotBeKeptBeyondTheirNames) {
  const char* const keep = "{% set ns = namespace() %}{% macro m() %}{% set ns.f = caller %}{% endmacro %}";
  EXPECT_THAT(Rendered(absl::StrCat(keep, "{% call m() %}x{% endcall %}{{ ns.f() }}")), HasReason("BAD_TEMPLATE"));
  EXPECT_THAT(Rendered(absl::StrCat(keep, "{% call m() %}x{% endcall %}")), HasReason("TEMPLATE_FAILED"));
  EXPECT_THAT(Rendered("{% macro m() %}{% endmacro %}{{ [m] }}"), HasReason("TEMPLATE_FAILED"));
  EXPECT_THAT(Rendered("{% set ns = namespace() %}{% set ns.a = ns %}"), HasReason("TEMPLATE_FAILED"));
}

TEST(ChatTemplateTest, WholeNumbersThatDoNotFitAreAnError) {
  for (const char* source :
       {"{{ 9223372036854775807 + 1 }}", "{{ -9223372036854775807 - 2 }}", "{{ 9223372036854775807 * 2 }}",
        "{{ 10 ** 19 }}", "{{ (-9223372036854775807 - 1) // -1 }}", "{{ -(-9223372036854775807 - 1) }}",
        "{{ (-9223372036854775807 - 1) | abs }}", "{{ 1e30 | int }}"}) {
    EXPECT_THAT(Rendered(source), AllOf(HasReason("TEMPLATE_FAILED"), HasMessage(HasSubstr("64 bits")))) << source;
  }
  EXPECT_THAT(Rendered("{{ a }}", {{"a", std::numeric_limits<uint64_t>::max()}}), HasReason("TEMPLATE_FAILED"));
  EXPECT_EQ(
      *Rendered("{{ (-9223372036854775807 - 1) % -1 }}{{ l[9223372036854775807:] }}{{ l[:-9223372036854775807] }}",
                {{"l", {1, 2}}}),
      "0[][]");
}

TEST(ChatTemplateTest, CasesOfLettersOutsideAsciiAreAnErrorInsteadOfAGuess) {
  EXPECT_THAT(Rendered("{{ 'größe' | upper }}"), HasMessage(HasSubstr("outside ASCII")));
  EXPECT_EQ(*Rendered("{{ 'user' | upper }}"), "USER");
}

TEST(ChatTemplateTest, AnErrorNamesTheLineAndWhatTheTemplateSays) {
  EXPECT_THAT(Rendered("a\n{% if true %}\n{{ raise_exception('roles must alternate') }}\n{% endif %}"),
              AllOf(HasReason("TEMPLATE_FAILED"), HasMessage(HasSubstr("line 3")),
                    HasMessage(HasSubstr("roles must alternate"))));
}

TEST(ChatTemplateTest, TellsWhatTheAssistantWrote) {
  const auto parsed = ChatTemplate::Parse(
      "{% for m in messages %}<{{ m.role }}>{% if m.role == 'a' %}{% generation %}{{ m.content }}!{% endgeneration "
      "%}{% endif %}{% endfor %}");
  ASSERT_THAT(parsed, IsOk());
  const auto rendered = parsed->Render(
      {{"messages", {{{"role", "a"}, {"content", "one"}}, {{"role", "u"}}, {{"role", "a"}, {"content", ""}}}}}, 0);
  ASSERT_THAT(rendered, IsOk());
  EXPECT_EQ(rendered->text, "<a>one!<u><a>!");
  EXPECT_THAT(rendered->generated, ElementsAre(Pair(3, 7), Pair(13, 14)));
}

TEST(ChatTemplateTest, TheTimeIsTheOneThatIsGiven) {
  const auto parsed = ChatTemplate::Parse("{{ strftime_now('%d %b %Y') }}");
  ASSERT_THAT(parsed, IsOk());
  EXPECT_EQ(parsed->Render(Json::object(), 86400 * 365)->text, "01 Jan 1971");
  EXPECT_THAT(Rendered("{{ strftime_now('" + Times(300, "%A") + "') }}"), HasReason("TEMPLATE_FAILED"));
}

}  // namespace
}  // namespace syncopate::text::chat
