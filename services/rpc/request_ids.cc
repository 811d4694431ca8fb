#include "services/rpc/request_ids.h"

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/status.h"

namespace syncopate::rpc {

absl::Status CheckRequestId(const std::string& request_id) {
  if (request_id.size() <= kMaxRequestIdBytes) return absl::OkStatus();
  return Error(absl::StatusCode::kInvalidArgument, "REQUEST_ID_TOO_LONG",
               absl::StrCat("request_id has ", request_id.size(), " bytes, the limit is ", kMaxRequestIdBytes));
}

void RequestIds::Run(const std::string& method, const google::protobuf::Message& request, const std::string& request_id,
                     google::protobuf::Message* response, const Work& work, Done reply) {
  if (request_id.empty()) {
    work(response, std::move(reply));  // a caller without an id accepts that a repeated call acts twice
    return;
  }
  if (absl::Status good = CheckRequestId(request_id); !good.ok()) return reply(good);
  std::string bytes = request.SerializeAsString();
  uint64_t fingerprint = HashCombine(DigestBytes(method.data(), static_cast<int64_t>(method.size())),
                                     DigestBytes(bytes.data(), static_cast<int64_t>(bytes.size())));
  std::shared_ptr<google::protobuf::Message> answer;
  bool known = false;
  bool reused = false;
  {
    MutexLock lock(&mutex_);
    Entry& entry = entries_[request_id];
    known = entry.answer != nullptr;
    if (!known) {
      entry.fingerprint = fingerprint;
      entry.answer.reset(response->New());
    }
    reused = entry.fingerprint != fingerprint;
    answer = entry.answer;
    if (!reused && !entry.ready) {
      entry.waiting.push_back({response, std::move(reply)});
      if (known) return;  // Complete() answers it
    }
  }
  // NOLINTBEGIN(bugprone-use-after-move): `reply` was moved only if neither of the first two conditions is true.
  if (reused) {
    reply(Error(absl::StatusCode::kInvalidArgument, "REQUEST_ID_REUSED",
                absl::StrCat("request_id '", request_id, "' named another request already; make up a new one"),
                {{"request_id", request_id}}));
  } else if (known) {
    response->CopyFrom(*answer);
    reply(absl::OkStatus());
    // NOLINTEND(bugprone-use-after-move)
  } else {
    work(answer.get(),
         [this, request_id, answer](const absl::Status& status) { Complete(request_id, answer, status); });
  }
}

void RequestIds::Complete(const std::string& request_id, const std::shared_ptr<google::protobuf::Message>& answer,
                          const absl::Status& status) {
  std::vector<Waiter> waiting;
  {
    MutexLock lock(&mutex_);
    auto found = entries_.find(request_id);
    SYNCOPATE_CHECK(found != entries_.end() && !found->second.ready);
    waiting = std::move(found->second.waiting);
    if (status.ok()) {
      found->second.ready = true;
      // The id is stored twice: as key and in the order of answers.
      found->second.bytes = static_cast<int64_t>(answer->SpaceUsedLong() + 2 * request_id.size() + sizeof(Entry));
      ready_bytes_ += found->second.bytes;
      ready_order_.push_back(request_id);
      while (ready_order_.size() > capacity_ || ready_bytes_ > max_bytes_) ForgetOldestLocked();
    } else {
      entries_.erase(found);  // a failed call changed nothing, so the same request may be tried again
    }
  }
  // Answered without the lock, because reply() is the caller's code.
  for (Waiter& waiter : waiting) {
    if (status.ok()) waiter.response->CopyFrom(*answer);
    waiter.reply(status);
  }
}

void RequestIds::ForgetOldestLocked() {
  auto oldest = entries_.find(ready_order_.front());
  ready_bytes_ -= oldest->second.bytes;
  entries_.erase(oldest);
  ready_order_.pop_front();
}

}  // namespace syncopate::rpc
