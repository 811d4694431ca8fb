#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "services/rpc/request_ids.h"
#include "services/rpc/status.h"

namespace syncopate::rpc {

// Answers a unary call at once: `return Reply(context, status);` with the response filled in already.
inline grpc::ServerUnaryReactor* Reply(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

// A unary call that is answered later, from any thread. The response that gRPC passed to the method may be written
// until Finish, and not any more once Finish was called by anybody.
//
//   auto call = UnaryCall::Create();
//   engine_->Generate(..., [call, response](absl::StatusOr<Answer> answer) { ...; call->Finish(status); });
//   return call->Start({.on_cancel = [this, id] { engine_->Abort(id); }});
//
// Thread-safe; lives until gRPC is done with it and the last holder is gone.
class UnaryCall final : private grpc::ServerUnaryReactor, public std::enable_shared_from_this<UnaryCall> {
 public:
  struct Callbacks {
    // The peer went away or its deadline passed. From a gRPC thread; must not block. Finish is still owed.
    std::function<void()> on_cancel = nullptr;
  };

  static std::shared_ptr<UnaryCall> Create() { return std::shared_ptr<UnaryCall>(new UnaryCall()); }

  // Call once; return the result from the service method. Finish may have been called before.
  grpc::ServerUnaryReactor* Start(Callbacks callbacks);
  // Exactly one Finish per call has an effect: the first.
  void Finish(const absl::Status& status);

 private:
  UnaryCall() = default;
  void OnCancel() override;
  void OnDone() override;

  Callbacks callbacks_;  // set before the first callback can run, freed by the last
  Mutex mutex_;
  std::shared_ptr<UnaryCall> self_ ABSL_GUARDED_BY(mutex_);
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status early_ ABSL_GUARDED_BY(mutex_);  // given to Finish before Start
};

// Answers a mutating call that has a request id: the work is done once for all calls of that id. It fills the answer in
// and calls `done`, now or later, from any thread; `work` itself is called before this returns, or never.
template <typename Request, typename Response>
grpc::ServerUnaryReactor* AnswerOnce(
    RequestIds& request_ids, const char* method, const Request& request, Response* response,
    const std::type_identity_t<std::function<void(Response* answer, RequestIds::Done done)>>& work) {
  auto call = UnaryCall::Create();
  request_ids.Run(
      method, request, request.request_id(), response,
      [&work](google::protobuf::Message* answer, RequestIds::Done done) {
        work(static_cast<Response*>(answer), std::move(done));
      },
      [call](const absl::Status& status) { call->Finish(status); });
  return call->Start({});
}

}  // namespace syncopate::rpc
