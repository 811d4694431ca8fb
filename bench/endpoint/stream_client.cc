#include "bench/endpoint/stream_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "bench/endpoint/paced_backend.h"

namespace syncopate::bench {
namespace {

constexpr absl::string_view kToken = "\"token_ids\":[";
constexpr char kEventEnd[] = "\n\n";

absl::Status Broken(const std::string& what) { return Error(absl::StatusCode::kUnavailable, "STREAM_BROKEN", what); }

// Takes chunked bodies apart (RFC 9112, 7.1), as far as one of our own server needs it.
class ChunkReader {
 public:
  // Appends the body's bytes among `bytes` to `body`; false if they are not chunked. `ended`: the last chunk has come.
  bool Read(absl::string_view bytes, std::string* body) {
    while (!bytes.empty() && !ended_) {
      if (left_ > 0) {
        const size_t take = std::min(left_, bytes.size());
        absl::StrAppend(body, bytes.substr(0, take));
        bytes.remove_prefix(take);
        left_ -= take;
        continue;
      }
      const size_t line_end = bytes.find('\n');
      absl::StrAppend(&line_, bytes.substr(0, line_end));
      if (line_end == absl::string_view::npos) return true;
      bytes.remove_prefix(line_end + 1);
      const std::string line = std::exchange(line_, "");
      if (line == "\r") continue;  // behind a chunk
      if (!absl::SimpleHexAtoi(absl::string_view(line).substr(0, line.find('\r')), &left_)) return false;
      ended_ = left_ == 0;
    }
    return true;
  }
  bool ended() const { return ended_; }

 private:
  std::string line_;  // the part of a chunk's first line that has come
  size_t left_ = 0;   // bytes of the chunk that have not come
  bool ended_ = false;
};

// One connection and the answer that it is reading.
class Stream {
 public:
  static absl::StatusOr<std::unique_ptr<Stream>> Connect(uint16_t port) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return Broken(absl::StrCat("no socket: ", strerror(errno)));
    auto stream = std::unique_ptr<Stream>(new Stream(fd));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
      return Broken(absl::StrCat("no connection: ", strerror(errno)));
    }
    return stream;
  }
  ~Stream() { close(fd_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  absl::Status Ask(uint16_t port, int64_t tokens) {
    head_.clear();
    body_.clear();
    is_body_ = false;
    chunks_ = ChunkReader();
    const std::string body = absl::StrCat(R"({"model":"paced","prompt":[1,2,3],"stream":true,"return_token_ids":true,)",
                                          R"("max_tokens":)", tokens, "}");
    const std::string request =
        absl::StrCat("POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:", port,
                     "\r\nContent-Type: application/json\r\nContent-Length: ", body.size(), "\r\n\r\n", body);
    if (send(fd_, request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size())) {
      return Broken(absl::StrCat("no request: ", strerror(errno)));
    }
    return absl::OkStatus();
  }

  // Reads what is there, waiting for it if there is nothing; appends the ids of its tokens to `tokens`.
  absl::Status Read(std::vector<int32_t>* tokens) {
    char buffer[64 << 10];
    const ssize_t size = recv(fd_, buffer, sizeof(buffer), 0);
    if (size <= 0) return Broken(size == 0 ? "the server closed a connection" : strerror(errno));
    absl::string_view bytes(buffer, static_cast<size_t>(size));
    if (!is_body_) {
      // What is left of the answer before: the end of its last chunk.
      if (head_.empty()) bytes = absl::StripLeadingAsciiWhitespace(bytes);
      absl::StrAppend(&head_, bytes);
      const size_t end = head_.find("\r\n\r\n");
      if (end == std::string::npos) return absl::OkStatus();
      if (!absl::StartsWith(head_, "HTTP/1.1 200")) return Broken(head_);
      is_body_ = true;
      if (!chunks_.Read(absl::string_view(head_).substr(end + 4), &body_)) return Broken("not chunked");
    } else if (!chunks_.Read(bytes, &body_)) {
      return Broken("not chunked");
    }
    TakeTokens(tokens);
    return absl::OkStatus();
  }
  bool ended() const { return chunks_.ended(); }
  int fd() const { return fd_; }

 private:
  explicit Stream(int fd) : fd_(fd) {}

  void TakeTokens(std::vector<int32_t>* tokens) {
    size_t begin = 0;
    for (size_t end = 0; (end = body_.find(kEventEnd, begin)) != std::string::npos; begin = end + 2) {
      absl::string_view event = absl::string_view(body_).substr(begin, end - begin);
      const size_t at = event.find(kToken);
      if (at == absl::string_view::npos) continue;
      event.remove_prefix(at + kToken.size());
      int32_t token = 0;
      if (absl::SimpleAtoi(event.substr(0, event.find(']')), &token)) tokens->push_back(token);
    }
    body_.erase(0, begin);
  }

  const int fd_;
  std::string head_, body_;
  bool is_body_ = false;
  ChunkReader chunks_;
};

int32_t Since(int32_t stamp) {
  return static_cast<int32_t>((static_cast<uint32_t>(NowStamp()) - static_cast<uint32_t>(stamp)) & 0x7fffffff);
}

}  // namespace

absl::StatusOr<StreamFigures> ReadStreams(uint16_t port, int streams, int64_t tokens, absl::Duration within) {
  const absl::Time began = absl::Now();
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  std::vector<std::unique_ptr<Stream>> all;
  std::vector<int64_t> counts(static_cast<size_t>(streams));
  for (int i = 0; i < streams; ++i) {
    SYNCOPATE_ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, Stream::Connect(port));
    epoll_event event = {.events = EPOLLIN, .data = {.u32 = static_cast<uint32_t>(i)}};
    epoll_ctl(epoll, EPOLL_CTL_ADD, stream->fd(), &event);
    all.push_back(std::move(stream));
  }
  for (const std::unique_ptr<Stream>& stream : all) SYNCOPATE_RETURN_IF_ERROR(stream->Ask(port, tokens));
  StreamFigures figures;
  figures.latencies.reserve(static_cast<size_t>(streams * tokens));
  std::vector<epoll_event> ready(static_cast<size_t>(streams));
  std::vector<int32_t> stamps;
  int left = streams;
  while (left > 0) {
    if (absl::Now() - began > within) {
      return Error(absl::StatusCode::kDeadlineExceeded, "STREAMS_LATE", absl::StrCat(left, " answers have not ended"));
    }
    const int count = epoll_wait(epoll, ready.data(), static_cast<int>(ready.size()), 1000);
    for (int i = 0; i < count; ++i) {
      const uint32_t which = ready[static_cast<size_t>(i)].data.u32;
      Stream& stream = *all[which];
      stamps.clear();
      SYNCOPATE_RETURN_IF_ERROR(stream.Read(&stamps));
      for (int32_t stamp : stamps) figures.latencies.push_back(Since(stamp));
      counts[which] += static_cast<int64_t>(stamps.size());
      if (!stream.ended()) continue;
      if (counts[which] != tokens) {
        return Error(absl::StatusCode::kInternal, "TOKENS_LOST",
                     absl::StrCat("an answer of ", tokens, " tokens brought ", counts[which]));
      }
      epoll_ctl(epoll, EPOLL_CTL_DEL, stream.fd(), nullptr);
      --left;
    }
  }
  close(epoll);
  figures.events = static_cast<int64_t>(figures.latencies.size());
  figures.seconds = absl::ToDoubleSeconds(absl::Now() - began);
  return figures;
}

absl::StatusOr<std::vector<int32_t>> TimeFirstTokens(uint16_t port, int rounds, absl::Duration within) {
  const absl::Time until = absl::Now() + within;
  SYNCOPATE_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, Stream::Connect(port));
  std::vector<int32_t> times, tokens;
  for (int round = 0; round < rounds; ++round) {
    if (absl::Now() > until) return Error(absl::StatusCode::kDeadlineExceeded, "STREAMS_LATE", "first tokens are late");
    const int32_t began = NowStamp();
    SYNCOPATE_RETURN_IF_ERROR(stream->Ask(port, 1));
    tokens.clear();
    bool is_timed = false;
    while (!stream->ended()) {
      SYNCOPATE_RETURN_IF_ERROR(stream->Read(&tokens));
      if (!tokens.empty() && !std::exchange(is_timed, true)) times.push_back(Since(began));
    }
  }
  return times;
}

}  // namespace syncopate::bench
