#include "services/rpc/unary.h"

namespace syncopate::rpc {

grpc::ServerUnaryReactor* UnaryCall::Start(Callbacks callbacks) {
  callbacks_ = std::move(callbacks);
  bool finish = false;
  absl::Status early;
  {
    MutexLock lock(&mutex_);
    self_ = shared_from_this();
    started_ = true;
    finish = finished_;
    early = early_;
  }
  if (finish) grpc::ServerUnaryReactor::Finish(ToGrpc(early));
  return this;
}

void UnaryCall::Finish(const absl::Status& status) {
  {
    MutexLock lock(&mutex_);
    if (finished_) return;
    finished_ = true;
    if (!started_) {
      early_ =
          status;  // OnDone must not come before Start() has set callbacks_ and self_, so Start() finishes the call
      return;
    }
  }
  grpc::ServerUnaryReactor::Finish(ToGrpc(status));
}

void UnaryCall::OnCancel() {
  if (callbacks_.on_cancel) callbacks_.on_cancel();
}

void UnaryCall::OnDone() {
  std::shared_ptr<UnaryCall> self;  // keeps this object alive until the function ends
  {
    MutexLock lock(&mutex_);
    self = std::move(self_);
  }
  callbacks_ = {};
}

}  // namespace syncopate::rpc
