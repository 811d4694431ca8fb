#include "services/metrics/http_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace syncopate::services {
namespace {

using ::testing::HasSubstr;

TEST(HttpRequestTest, WaitsForTheEndOfTheHeaders) {
  EXPECT_EQ(HttpAnswerCode(""), 0);
  EXPECT_EQ(HttpAnswerCode("GE"), 0);
  EXPECT_EQ(HttpAnswerCode("GET /metrics HTTP/1.1\r\n"), 0);
  EXPECT_EQ(HttpAnswerCode("GET /metrics HTTP/1.1\r\nHost: x\r\n"), 0);
  EXPECT_EQ(HttpAnswerCode("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"), 200);
  EXPECT_EQ(HttpAnswerCode("GET /metrics HTTP/1.0\n\n"), 200);
}

TEST(HttpRequestTest, AnswersOnlyGetOfTheMetricsPath) {
  EXPECT_EQ(HttpAnswerCode("GET /metrics?x=y HTTP/1.1\r\n\r\n"), 200);
  EXPECT_EQ(HttpAnswerCode("GET / HTTP/1.1\r\n\r\n"), 404);
  EXPECT_EQ(HttpAnswerCode("GET /metricsx HTTP/1.1\r\n\r\n"), 404);
  EXPECT_EQ(HttpAnswerCode("GET /../metrics HTTP/1.1\r\n\r\n"), 404);
  EXPECT_EQ(HttpAnswerCode("HEAD /metrics HTTP/1.1\r\n\r\n"), 405);
  EXPECT_EQ(HttpAnswerCode("POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"), 405);
}

TEST(HttpRequestTest, RefusesWhatIsNotHttp) {
  const std::string kBad[] = {
      "\x16\x03\x01 tls hello", "get /metrics HTTP/1.1\r\n", "GET /metrics\r\n",          "GET\r\n",
      "GET  HTTP/1.1\r\n",      "GET metrics HTTP/1.1\r\n",  "GET /metrics HTTP/2.0\r\n", "\r\n",
      "GET /a b HTTP/1.1\r\n",  std::string("\0\0\0\0", 4)};
  for (const std::string& text : kBad) EXPECT_EQ(HttpAnswerCode(text), 400) << text;
}

TEST(HttpRequestTest, RefusesARequestOverTheCap) {
  std::string headers = "GET /metrics HTTP/1.1\r\nX: ";
  EXPECT_EQ(HttpAnswerCode(headers + std::string(kMaxHttpRequestBytes, 'x')), 431);
  EXPECT_EQ(HttpAnswerCode("GET /" + std::string(kMaxHttpRequestBytes, 'x')), 431);
  EXPECT_EQ(HttpAnswerCode(headers + std::string(kMaxHttpRequestBytes, 'x') + "\r\n\r\n"), 431);
}

TEST(HttpRequestTest, SaysWhatKindOfTextFollowsAndHowLongItIs) {
  std::string answer = HttpAnswer(200, "a 1\n");
  EXPECT_THAT(answer, HasSubstr("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Length: 4\r\n"));
  EXPECT_TRUE(answer.ends_with("\r\n\r\na 1\n"));
  EXPECT_THAT(HttpAnswer(405, ""), HasSubstr("Allow: GET\r\n"));
}

}  // namespace
}  // namespace syncopate::services
