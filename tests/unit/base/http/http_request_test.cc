#include "base/http/http_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace syncopate {
namespace {

using ::testing::HasSubstr;

int GetCode(absl::string_view received) { return ReadHttpRequest(received).code; }

TEST(HttpRequestTest, WaitsForTheEndOfTheHeaders) {
  EXPECT_EQ(GetCode(""), 0);
  EXPECT_EQ(GetCode("GE"), 0);
  EXPECT_EQ(GetCode("GET /metrics HTTP/1.1\r\n"), 0);
  EXPECT_EQ(GetCode("GET /metrics HTTP/1.1\r\nHost: x\r\n"), 0);
  EXPECT_EQ(GetCode("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"), 200);
  EXPECT_EQ(GetCode("GET /metrics HTTP/1.0\n\n"), 200);
}

TEST(HttpRequestTest, TakesOnlyAGetAndSaysOfWhat) {
  EXPECT_EQ(ReadHttpRequest("GET /metrics?x=y HTTP/1.1\r\n\r\n").path, "/metrics");
  EXPECT_EQ(ReadHttpRequest("GET / HTTP/1.1\r\n\r\n").path, "/");
  EXPECT_EQ(ReadHttpRequest("GET /../metrics HTTP/1.1\r\n\r\n").path, "/../metrics");
  EXPECT_EQ(GetCode("HEAD /metrics HTTP/1.1\r\n\r\n"), 405);
  EXPECT_EQ(GetCode("POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"), 405);
}

TEST(HttpRequestTest, GivesTheQueryAndItsValues) {
  const HttpRequest request = ReadHttpRequest("GET /new.json?steps=12&span=&steps=13 HTTP/1.1\r\n\r\n");
  EXPECT_EQ(request.query, "steps=12&span=&steps=13");
  EXPECT_EQ(QueryValue(request.query, "steps"), "12");
  EXPECT_EQ(QueryValue(request.query, "span"), "");
  EXPECT_EQ(QueryValue(request.query, "step"), "");
  EXPECT_EQ(QueryValue("", "steps"), "");
}

TEST(HttpRequestTest, GivesTheHostIfThereIsOneAlone) {
  EXPECT_EQ(ReadHttpRequest("GET / HTTP/1.1\r\nA: b\r\nhOST:  127.0.0.1:80 \r\n\r\n").host, "127.0.0.1:80");
  EXPECT_EQ(ReadHttpRequest("GET / HTTP/1.1\r\nX-Host: a\r\n\r\n").host, "");
  EXPECT_EQ(ReadHttpRequest("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n").host, "");
}

TEST(HttpRequestTest, RefusesWhatIsNotHttp) {
  const std::string kBad[] = {
      "\x16\x03\x01 tls hello", "get /metrics HTTP/1.1\r\n", "GET /metrics\r\n",          "GET\r\n",
      "GET  HTTP/1.1\r\n",      "GET metrics HTTP/1.1\r\n",  "GET /metrics HTTP/2.0\r\n", "\r\n",
      "GET /a b HTTP/1.1\r\n",  std::string("\0\0\0\0", 4)};
  for (const std::string& text : kBad) EXPECT_EQ(GetCode(text), 400) << text;
}

TEST(HttpRequestTest, RefusesARequestOverTheCap) {
  std::string headers = "GET /metrics HTTP/1.1\r\nX: ";
  EXPECT_EQ(GetCode(headers + std::string(kMaxHttpRequestBytes, 'x')), 431);
  EXPECT_EQ(GetCode("GET /" + std::string(kMaxHttpRequestBytes, 'x')), 431);
  EXPECT_EQ(GetCode(headers + std::string(kMaxHttpRequestBytes, 'x') + "\r\n\r\n"), 431);
}

TEST(HttpRequestTest, SaysWhatKindOfTextFollowsAndHowLongItIs) {
  std::string answer = HttpPage(200, "text/plain; version=0.0.4", "a 1\n");
  EXPECT_THAT(answer, HasSubstr("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Type: text/plain; version=0.0.4\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Length: 4\r\n"));
  EXPECT_TRUE(answer.ends_with("\r\n\r\na 1\n"));
  EXPECT_THAT(HttpRefusal(405, "/metrics"), HasSubstr("Allow: GET\r\n"));
}

TEST(HttpRequestTest, WhatFollowsTheHeadersChangesNothing) {
  const std::string request = "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
  for (const std::string& more : {std::string("Content-Length: 5\r\n\r\n"), std::string("Host: b\r\n\r\n"),
                                  std::string(2 * kMaxHttpRequestBytes, 'x')}) {
    const HttpRequest read = ReadHttpRequest(request + more);
    EXPECT_EQ(read.code, 200);
    EXPECT_EQ(read.host, "a");
  }
}

}  // namespace
}  // namespace syncopate
