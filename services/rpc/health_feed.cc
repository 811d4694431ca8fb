#include "services/rpc/health_feed.h"

#include <grpcpp/health_check_service_interface.h>

#include <utility>

namespace syncopate::rpc {

HealthFeed::HealthFeed(Source source, grpc::HealthCheckServiceInterface* health)
    : source_(std::move(source)), health_(health) {
  Publish();
  thread_ = std::thread([this] {
    while (true) {
      {
        MutexLock lock(&mutex_);
        if (mutex_.AwaitWithTimeout(Condition(&stopping_), source_.every)) return;
      }
      Publish();
    }
  });
}

HealthFeed::~HealthFeed() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void HealthFeed::Publish() {
  const bool live = source_.live();
  const bool ready = source_.ready();
  if (live_ != live) health_->SetServingStatus("liveness", live);
  live_ = live;
  if (std::exchange(ready_, ready) == ready) return;
  health_->SetServingStatus("readiness", ready);
  health_->SetServingStatus("", ready);  // "" is the server as a whole, which most probes ask for
  for (const std::string& service : source_.services) health_->SetServingStatus(service, ready);
}

}  // namespace syncopate::rpc
