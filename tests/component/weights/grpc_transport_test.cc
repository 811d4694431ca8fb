#include "services/weights/grpc_transport.h"

#include <map>
#include <memory>
#include <vector>

#include "services/rpc/server.h"
#include "services/weights/weight_service.h"
#include "tests/support/transport_conformance.h"

namespace syncopate::synchronizer {
namespace {

// Each source is a server of its own on the loopback interface.
class GrpcHarness final : public TransportHarness {
 public:
  SourceTransport* AddSource(WeightStore* store) override {
    auto source = std::make_unique<Source>(store);
    SourceTransport* end = &source->transport;
    sources_[end] = std::move(source);
    return end;
  }
  void KillSource(SourceTransport* source) override { sources_.at(source)->server->Stop(absl::ZeroDuration()); }
  ReceiverTransport* receiver() override { return &receiver_; }

 private:
  struct Source {
    explicit Source(WeightStore* store)
        : service(store), server(services::Server::Start({}, {&service}).value()), transport(server->address()) {}
    services::WeightServiceImpl service;
    std::unique_ptr<services::Server> server;
    services::GrpcSource transport;
  };

  services::GrpcReceiver receiver_;
  std::map<SourceTransport*, std::unique_ptr<Source>> sources_;
};

std::unique_ptr<TransportHarness> MakeGrpcHarness() { return std::make_unique<GrpcHarness>(); }

INSTANTIATE_TEST_SUITE_P(Grpc, TransportConformanceTest, ::testing::Values(&MakeGrpcHarness));

}  // namespace
}  // namespace syncopate::synchronizer
