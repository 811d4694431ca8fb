#pragma once

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "services/auth/transport_security.h"
#include "services/rpc/write_queue.h"
#include "syncopate/v1/trajectory.grpc.pb.h"
#include "trainer/data/training_data.h"
#include "trainer/turns/turn_desk.h"

namespace syncopate::trainerd {

// TrajectoryService over TrainingData: one Exchange stream per rollouter. Leases are sent as soon as credits, a new
// serving version or an answer allow them; acknowledgements are sent when the group is durable. When a stream breaks,
// its leases are given to other rollouters at once. Credits bound the number of leases of a stream, and `options` bound
// the queue for a reader that does not read: its stream ends with RESOURCE_EXHAUSTED.
//
// A stream is refused with the errors of TrainingData::Connect; with INVALID_ARGUMENT (reason HELLO_EXPECTED or
// BAD_MESSAGE) if it does not begin with exactly one hello; and with PERMISSION_DENIED if the peer is not the member
// that its hello names (reason WRONG_SECRET; WRONG_ROLE if its certificate or token gives another role). A bad group,
// or one that names another rollouter than the stream's, is refused alone; the stream goes on.
class TrajectoryServiceImpl final : public v1::TrajectoryService::CallbackService {
 public:
  // `data` must outlive the server that serves this. Null: until Attach, streams are refused with UNAVAILABLE (reason
  // STARTING), because a trainer must listen before it knows its epoch. `security` is the server's own; null: nobody is
  // authenticated.
  explicit TrajectoryServiceImpl(trainer::TrainingData* data, const rpc::StreamOptions& options = {},
                                 std::shared_ptr<const auth::TransportSecurity> security = nullptr)
      : data_(data), options_(options), security_(std::move(security)) {}
  // `turns`: what rollouters whose hello names one of `cards` take turns by; null: nobody shares the trainer's devices.
  // `data` and `turns` are borrowed.
  void Attach(trainer::TrainingData* data, trainer::TurnDesk* turns = nullptr, std::set<std::string> cards = {}) {
    turns_ = turns;
    cards_ = std::move(cards);
    data_ = data;  // last: a stream that sees it sees the others
  }

  grpc::ServerBidiReactor<v1::ExchangeRequest, v1::ExchangeResponse>* Exchange(
      grpc::CallbackServerContext* context) override;

 private:
  std::atomic<trainer::TrainingData*> data_;
  trainer::TurnDesk* turns_ = nullptr;
  std::set<std::string> cards_;
  const rpc::StreamOptions options_;
  const std::shared_ptr<const auth::TransportSecurity> security_;
};

}  // namespace syncopate::trainerd
