#include "services/gateway/passage.h"

#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/status.h"
#include "services/endpoint/answer_writer.h"

namespace syncopate::gateway {
namespace {

// An endpoint has not begun to answer: it is busy, or serves nothing now.
bool IsRefusalOfTheMoment(int code) { return code == 429 || code == 503; }

// A number instead of the token, which should not lie in tables.
std::string CallerName(const std::string& authorization) {
  if (authorization.empty()) return "";
  return absl::StrCat(DigestBytes(authorization.data(), static_cast<int64_t>(authorization.size())));
}

}  // namespace

Passage::Passage(std::shared_ptr<http::Exchange> exchange, std::shared_ptr<Backends> backends, Upstream* upstream,
                 std::shared_ptr<std::atomic<int64_t>> body_bytes)
    : exchange_(std::move(exchange)),
      backends_(std::move(backends)),
      upstream_(upstream),
      caller_(CallerName(exchange_->request().authorization)),
      path_(exchange_->request().path) {
  const http::Request& request = exchange_->request();
  *body_bytes += static_cast<int64_t>(request.body.size());
  request_ = {.url = "",
              .method = request.method,
              .authorization = request.authorization,
              .content_type = request.content_type,
              .body = std::shared_ptr<const std::string>(new std::string(request.body),
                                                         [body_bytes = std::move(body_bytes)](const std::string* body) {
                                                           *body_bytes -= static_cast<int64_t>(body->size());
                                                           delete body;
                                                         })};
}

void Passage::Begin() {
  if (!Try()) {
    return EndWithError(503, "no rollouter of the run serves an endpoint now; try again");
  }
  exchange_->SetGoneListener([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->Leave();
  });
}

bool Passage::Try() {
  std::optional<Backends::Choice> choice = backends_->Choose(caller_, tried_, Clock::Real()->Now());
  if (!choice.has_value()) return false;
  address_ = choice->address;
  tried_.insert(address_);
  response_ = http::Response();
  UpstreamRequest request = request_;
  request.url = absl::StrCat("http://", address_, path_);
  MutexLock lock(&mutex_);
  if (gone_) return true;
  place_ = std::move(choice->place);
  // Under the lock: the number is there before anybody needs it.
  id_ = upstream_->Begin(std::move(request), shared_from_this());
  return true;
}

void Passage::Leave() {
  MutexLock lock(&mutex_);
  gone_ = true;
  if (id_ != 0) upstream_->Cancel(id_);
  place_.reset();
}

void Passage::OnHead(const UpstreamHead& head) {
  response_.code = head.code;
  if (!head.content_type.empty()) response_.content_type = head.content_type;
  response_.headers = head.headers;
  streams_ = head.code == 200 && absl::StartsWith(head.content_type, "text/event-stream");
  if (streams_) exchange_->Stream(shared_from_this());
}

bool Passage::OnBody(absl::string_view bytes) {
  if (!streams_) {
    // Bytes beyond the limit are dropped; OnEnd reports it.
    if (response_.body.size() <= kMaxResponseBytes) absl::StrAppend(&response_.body, bytes);
    return true;
  }
  {
    MutexLock lock(&mutex_);
    if (waiting_.size() >= kMaxWaitingBytes) {
      held_back_ = true;
      return false;
    }
    absl::StrAppend(&waiting_, bytes);
  }
  exchange_->Wake();
  return true;
}

bool Passage::Take(std::string* bytes) {
  MutexLock lock(&mutex_);
  // Whole events alone, so that an error event never follows half of one; a longer event passes in parts.
  const size_t last_end = waiting_.rfind("\n\n");
  const bool all = ended_ || waiting_.size() >= kMaxWaitingBytes;
  const size_t size = all ? waiting_.size() : last_end == std::string::npos ? 0 : last_end + 2;
  bytes->append(waiting_, 0, size);
  waiting_.erase(0, size);
  if (std::exchange(held_back_, false)) upstream_->Resume(id_);
  return ended_;
}

void Passage::OnEnd(const absl::Status& status) {
  {
    MutexLock lock(&mutex_);
    place_.reset();
  }
  if (streams_) {
    {
      MutexLock lock(&mutex_);
      if (!status.ok()) {
        const size_t last_end = waiting_.rfind("\n\n");
        waiting_.erase(last_end == std::string::npos ? 0 : last_end + 2);
        absl::StrAppend(
            &waiting_,
            "data: ", endpoint::ErrorBody(502, absl::StrCat("the rollouter broke off its answer: ", status.message())),
            "\n\n");
      }
      ended_ = true;
    }
    return exchange_->Wake();
  }
  if (!status.ok()) {
    last_failure_ = status;
    if (ErrorReason(status) == "UNREACHABLE") backends_->Rest(address_, Clock::Real()->Now());
    SYNCOPATE_LOG(kWarning, "an endpoint failed a request: %s", status.ToString());
  }
  const bool broke_off = !status.ok() && ErrorReason(status) != "UNREACHABLE";
  // The request itself may have ended the process: it is tried once more, not at each rollouter in turn.
  const bool again = broke_off ? breaks_++ == 0 : !status.ok() || IsRefusalOfTheMoment(response_.code);
  if (again) {
    http::Response refusal = std::move(response_);
    if (Try()) return;
    response_ = std::move(refusal);
  }
  if (!status.ok()) {
    return EndWithError(502, absl::StrCat("no rollouter answered; the last one tried: ", last_failure_.message()));
  }
  if (response_.body.size() > kMaxResponseBytes) {
    return EndWithError(502, "the rollouter's answer is longer than a gateway passes on; ask for a stream");
  }
  exchange_->Respond([response = std::move(response_)] { return response; });
}

void Passage::EndWithError(int code, const std::string& message) {
  http::Response response = {.code = code, .body = endpoint::ErrorBody(code, message)};
  if (code == 503) response.headers.emplace_back("Retry-After", "1");
  exchange_->Respond([response = std::move(response)] { return response; });
}

}  // namespace syncopate::gateway
