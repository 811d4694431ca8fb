#include "bench/sync/bench_model.h"

#include <utility>

#include "base/status.h"
#include "synchronizer/plan/model_shapes.h"

namespace syncopate::bench {
namespace {

using synchronizer::ModelShape;

constexpr char kTiny[] = "tiny";

absl::StatusOr<ModelShape> ShapeOf(const std::string& model) {
  if (model != kTiny) return synchronizer::FindModelShape(model);
  ModelShape shape;
  shape.name = kTiny;
  shape.layers = 2;
  shape.hidden = 128;
  shape.heads = 4;
  shape.key_value_heads = 2;
  shape.head_dim = 32;
  shape.intermediate = 384;
  shape.vocabulary = 1000;
  shape.tied = true;
  shape.qkv_bias = true;
  return shape;
}

}  // namespace

std::vector<std::string> BenchModelNames() {
  std::vector<std::string> names = synchronizer::ModelShapeNames();
  names.insert(names.begin(), kTiny);
  return names;
}

absl::StatusOr<Manifest> BenchManifest(const std::string& model) {
  SYNCOPATE_ASSIGN_OR_RETURN(ModelShape shape, ShapeOf(model));
  // A tiny model is cut into many buckets too.
  return Manifest::Create(synchronizer::TensorsOf(shape),
                          model == kTiny ? int64_t{64} << 10 : Manifest::kDefaultBucketBytes);
}

absl::StatusOr<int64_t> BenchHeadDim(const std::string& model) {
  SYNCOPATE_ASSIGN_OR_RETURN(ModelShape shape, ShapeOf(model));
  return shape.head_dim;
}

}  // namespace syncopate::bench
