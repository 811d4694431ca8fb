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

// Answers a unary call at once: `return Reply(context, status);` after filling in the response.
inline grpc::ServerUnaryReactor* Reply(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

// A unary call that is answered later, from any thread. The response that gRPC passed to the method may be written
// until any thread calls Finish, and not afterwards.
//
//   auto call = UnaryCall::Create();
//   engine_->Generate(..., [call, response](absl::StatusOr<Answer> answer) { ...; call->Finish(status); });
//   return call->Start({.on_cancel = [this, id] { engine_->Abort(id); }});
//
// Thread-safe; lives until gRPC and all other owners have released it.
class UnaryCall final : private grpc::ServerUnaryReactor, public std::enable_shared_from_this<UnaryCall> {
 public:
  struct Callbacks {
    // Called when the peer went away or its deadline passed. Runs on a gRPC thread; must not block. Finish must still
    // be called.
    std::function<void()> on_cancel = nullptr;
  };

  static std::shared_ptr<UnaryCall> Create() { return std::shared_ptr<UnaryCall>(new UnaryCall()); }

  // Call once; return the result from the service method. Finish may be called before.
  grpc::ServerUnaryReactor* Start(Callbacks callbacks);
  // Only the first Finish of a call has an effect.
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
  absl::Status early_ ABSL_GUARDED_BY(mutex_);  // the status given to Finish before Start
};

// Answers a mutating call that has a request id: the work is done once for all calls with that id. `work` fills in the
// answer and calls `done`, now or later, from any thread; `work` itself is called before this returns, or never.
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
