#include "bench/sync/bench_model.h"

#include "base/status.h"

namespace syncopate::bench {

absl::StatusOr<Manifest> BenchManifest(const std::string& model) {
  SYNCOPATE_ASSIGN_OR_RETURN(const model::ModelConfig config, model::FindPreset(model));
  // The buckets of a small model are smaller, so that it has many buckets too.
  constexpr int64_t kSmallHidden = 256, kSmallBucket = 64 << 10;
  return model::MakeManifest(config, DType::kBFloat16,
                             config.hidden_size < kSmallHidden ? kSmallBucket : Manifest::kDefaultBucketBytes);
}

}  // namespace syncopate::bench
