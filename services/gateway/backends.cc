#include "services/gateway/backends.h"

#include <atomic>
#include <iterator>
#include <utility>

namespace syncopate::gateway {

// The requests under way at one endpoint. A request may outlive the endpoint's entry.
struct Backends::Load {
  std::atomic<int64_t> requests = 0;
};

void Backends::Set(const std::set<std::string>& addresses) {
  MutexLock lock(&mutex_);
  std::erase_if(backends_, [&addresses](const auto& one) { return addresses.count(one.first) == 0; });
  for (const std::string& address : addresses) {
    Backend& backend = backends_[address];
    if (backend.load == nullptr) backend.load = std::make_shared<Load>();
  }
}

std::optional<Backends::Choice> Backends::Choose(const std::string& caller, const std::set<std::string>& tried,
                                                 absl::Time now) {
  MutexLock lock(&mutex_);
  if (backends_.empty()) return std::nullopt;
  // The search begins at another endpoint each time, so that equal ones take turns.
  auto next = std::next(backends_.begin(), static_cast<int64_t>(choices_++ % backends_.size()));
  auto best = backends_.end();
  auto resting = backends_.end();
  for (size_t i = 0; i < backends_.size(); ++i, ++next) {
    if (next == backends_.end()) next = backends_.begin();
    if (tried.count(next->first) > 0) continue;
    auto& least = now < next->second.rests_until ? resting : best;
    if (least == backends_.end() || next->second.load->requests < least->second.load->requests) least = next;
  }
  if (best == backends_.end()) best = resting;
  if (best == backends_.end()) return std::nullopt;
  const auto last = caller.empty() ? last_.end() : last_.find(caller);
  if (last != last_.end() && tried.count(last->second) == 0) {
    const auto sticky = backends_.find(last->second);
    if (sticky != backends_.end() && now >= sticky->second.rests_until &&
        sticky->second.load->requests < best->second.load->requests + kSlack) {
      best = sticky;
    }
  }
  if (!caller.empty()) RememberLocked(caller, best->first);
  const std::shared_ptr<Load> load = best->second.load;
  ++load->requests;
  return Choice{best->first, std::shared_ptr<void>(nullptr, [load](void*) { --load->requests; })};
}

void Backends::RememberLocked(const std::string& caller, const std::string& address) {
  if (last_.insert_or_assign(caller, address).second) callers_.push_back(caller);
  if (callers_.size() <= kMaxCallers) return;
  last_.erase(callers_.front());
  callers_.pop_front();
}

void Backends::Rest(const std::string& address, absl::Time now) {
  MutexLock lock(&mutex_);
  const auto found = backends_.find(address);
  if (found != backends_.end()) found->second.rests_until = now + rest_;
}

std::vector<std::string> Backends::addresses() const {
  MutexLock lock(&mutex_);
  std::vector<std::string> all;
  for (const auto& [address, backend] : backends_) all.push_back(address);
  return all;
}

}  // namespace syncopate::gateway
