#pragma once

#include "synchronizer/transport/weight_store.h"
#include "syncopate/v1/weights.grpc.pb.h"

namespace syncopate::member {

// WeightService over a WeightStore: streams the ranges that a receiver's plan asks for, at most kChunkBytes a message,
// the next chunk only when gRPC has accepted the one before. So a receiver that does not read occupies one chunk and
// its reader, and staging can take the slot from it at any time.
class WeightServiceImpl final : public v1::WeightService::CallbackService {
 public:
  // `store` must outlive the server that serves this.
  explicit WeightServiceImpl(synchronizer::WeightStore* store) : store_(store) {}

  // Errors: FAILED_PRECONDITION reason MODEL_MISMATCH, INVALID_ARGUMENT reason BAD_RANGE, and those of WeightStore and
  // WeightReader (VERSION_NOT_STAGED, SUPERSEDED).
  grpc::ServerWriteReactor<v1::FetchWeightsResponse>* FetchWeights(grpc::CallbackServerContext* context,
                                                                   const v1::FetchWeightsRequest* request) override;

 private:
  synchronizer::WeightStore* const store_;
};

}  // namespace syncopate::member
