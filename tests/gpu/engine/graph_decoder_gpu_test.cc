#include "rollouter/cuda/decode/graph_decoder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <utility>

#include "tests/gpu/engine/half_values.h"
#include "tests/support/status_matchers.h"

namespace syncopate::rollouter {
namespace {

using cuda::DeviceBuffer;
using ::syncopate::testing::HasReason;
using testing::Download;
using testing::Half;
using testing::RandomHalves;
using testing::RelativeError;
using testing::Upload;
using testing::Widen;
using testing::WidenAll;

constexpr int32_t kPositions = 64;
constexpr double kTheta = 10000;
constexpr double kLogitsError = 4e-2;  // the error of bf16 against float32; a bug makes it about 1

// A matrix in host memory and on the GPU.
struct Tensor {
  std::vector<float> host;
  DeviceBuffer device;

  static Tensor Random(int64_t count, uint64_t seed, float deviation, float mean = 0) {
    const std::vector<Half> halves = RandomHalves(count, seed, deviation, mean);
    return {WidenAll(halves), Upload(halves)};
  }
};

// A small model with random weights, and its forward pass in float32 on the host.
class HostModel {
 public:
  explicit HostModel(const DecodeShape& shape)
      : shape_(shape), rotations_(RotaryTable(kPositions, shape.heads.head_dim, kTheta)) {
    const float d = 1 / std::sqrt(static_cast<float>(shape.hidden));
    const float q = 1 / std::sqrt(static_cast<float>(shape.query_size()));
    const float f = 1 / std::sqrt(static_cast<float>(shape.intermediate));
    uint64_t seed = 100;
    tokens_ = Tensor::Random(int64_t{shape.vocab} * shape.hidden, ++seed, 1);
    head_ = Tensor::Random(int64_t{shape.vocab} * shape.hidden, ++seed, 2 * d);
    norm_ = Tensor::Random(shape.hidden, ++seed, 0.1f, 1);
    for (int32_t i = 0; i < shape.layers; ++i) {
      Layer& layer = layers_.emplace_back();
      layer.input_norm = Tensor::Random(shape.hidden, ++seed, 0.1f, 1);
      layer.qkv = Tensor::Random(int64_t{shape.qkv_size()} * shape.hidden, ++seed, d);
      layer.qkv_bias = Tensor::Random(shape.qkv_size(), ++seed, 0.5f);
      layer.q_norm = Tensor::Random(shape.heads.head_dim, ++seed, 0.1f, 1);
      layer.k_norm = Tensor::Random(shape.heads.head_dim, ++seed, 0.1f, 1);
      layer.output = Tensor::Random(int64_t{shape.hidden} * shape.query_size(), ++seed, q);
      layer.post_norm = Tensor::Random(shape.hidden, ++seed, 0.1f, 1);
      layer.gate_up = Tensor::Random(int64_t{2} * shape.intermediate * shape.hidden, ++seed, d);
      layer.down = Tensor::Random(int64_t{shape.hidden} * shape.intermediate, ++seed, f);
    }
  }

  DecodeWeights weights() const {
    DecodeWeights weights = {tokens_.device.data(), {}, norm_.device.data(), head_.device.data()};
    for (const Layer& layer : layers_) {
      weights.layers.push_back({layer.input_norm.device.data(), layer.qkv.device.data(), layer.qkv_bias.device.data(),
                                layer.q_norm.device.data(), layer.k_norm.device.data(), layer.output.device.data(),
                                layer.post_norm.device.data(), layer.gate_up.device.data(), layer.down.device.data()});
    }
    return weights;
  }

  // The state of a sequence: its keys and values so far.
  struct Sequence {
    std::vector<std::vector<float>> keys, values;  // one entry for each layer, [tokens, kv_heads * head_dim]
    int32_t length = 0;
  };
  // Appends a token and returns the logits after it.
  std::vector<float> Step(Sequence& sequence, int32_t token) const {
    sequence.keys.resize(layers_.size());
    sequence.values.resize(layers_.size());
    std::vector<float> x(tokens_.host.begin() + int64_t{token} * shape_.hidden,
                         tokens_.host.begin() + int64_t{token + 1} * shape_.hidden);
    for (size_t i = 0; i < layers_.size(); ++i) {
      Add(x, Attention(layers_[i], sequence.keys[i], sequence.values[i], sequence.length, Norm(x, norm_of(i))));
      Add(x, FeedForward(layers_[i], Norm(x, layers_[i].post_norm.host.data())));
    }
    ++sequence.length;
    return Multiply(head_.host, Norm(x, norm_.host.data()));
  }

  // Changes the weights under the decoder: the address stays, the numbers change.
  void DoubleFinalNorm() {
    std::vector<Half> halves;
    for (float& value : norm_.host) {
      value *= 2;
      halves.push_back(testing::Narrow(value));
    }
    synchronizer::ToDevice(0, norm_.device.data(), halves.data(), static_cast<int64_t>(halves.size() * sizeof(Half)));
  }

  const DecodeShape& shape() const { return shape_; }

 private:
  struct Layer {
    Tensor input_norm, qkv, qkv_bias, q_norm, k_norm, output, post_norm, gate_up, down;
  };
  const float* norm_of(size_t layer) const { return layers_[layer].input_norm.host.data(); }

  static void Add(std::vector<float>& x, const std::vector<float>& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }
  static std::vector<float> Multiply(const std::vector<float>& matrix, const std::vector<float>& x) {
    std::vector<float> y(matrix.size() / x.size());
    for (size_t row = 0; row < y.size(); ++row) {
      float sum = 0;
      for (size_t i = 0; i < x.size(); ++i) sum += matrix[row * x.size() + i] * x[i];
      y[row] = sum;
    }
    return y;
  }
  std::vector<float> Norm(const std::vector<float>& x, const float* weight) const {
    float squares = 0;
    for (float value : x) squares += value * value;
    const float scale = 1 / std::sqrt(squares / static_cast<float>(x.size()) + shape_.norm_epsilon);
    std::vector<float> normed(x.size());
    for (size_t i = 0; i < x.size(); ++i) normed[i] = x[i] * scale * weight[i];
    return normed;
  }
  std::vector<float> Head(const std::vector<float>& qkv, int32_t head, const float* norm, int32_t position) const {
    const int32_t dim = shape_.heads.head_dim, half = dim / 2;
    std::vector<float> x(qkv.begin() + head * dim, qkv.begin() + (head + 1) * dim);
    if (norm != nullptr) x = Norm(x, norm);
    for (int32_t i = 0; i < half; ++i) {
      const float* angle = &rotations_[static_cast<size_t>(2 * (position * half + i))];
      const float low = x[static_cast<size_t>(i)], high = x[static_cast<size_t>(half + i)];
      x[static_cast<size_t>(i)] = low * angle[0] - high * angle[1];
      x[static_cast<size_t>(half + i)] = high * angle[0] + low * angle[1];
    }
    return x;
  }
  std::vector<float> Attention(const Layer& layer, std::vector<float>& keys, std::vector<float>& values,
                               int32_t position, const std::vector<float>& x) const {
    const auto [heads, kv_heads, dim] = shape_.heads;
    std::vector<float> qkv = Multiply(layer.qkv.host, x), attended;
    if (shape_.qkv_bias) Add(qkv, layer.qkv_bias.host);
    for (int32_t head = 0; head < kv_heads; ++head) {
      const float* norm = shape_.qk_norm ? layer.k_norm.host.data() : nullptr;
      for (float value : Head(qkv, heads + head, norm, position)) keys.push_back(value);
      const auto value = qkv.begin() + (heads + kv_heads + head) * dim;
      values.insert(values.end(), value, value + dim);
    }
    for (int32_t head = 0; head < heads; ++head) {
      const std::vector<float> query = Head(qkv, head, shape_.qk_norm ? layer.q_norm.host.data() : nullptr, position);
      const int32_t kv_head = head / (heads / kv_heads);
      std::vector<float> out(static_cast<size_t>(dim));
      float total = 0;
      for (int32_t token = 0; token <= position; ++token) {
        const size_t place = static_cast<size_t>((token * kv_heads + kv_head) * dim);
        float score = 0;
        for (size_t i = 0; i < out.size(); ++i) score += query[i] * keys[place + i];
        const float weight = std::exp(score / std::sqrt(static_cast<float>(dim)));
        total += weight;
        for (size_t i = 0; i < out.size(); ++i) out[i] += weight * values[place + i];
      }
      for (float value : out) attended.push_back(value / total);
    }
    return Multiply(layer.output.host, attended);
  }
  std::vector<float> FeedForward(const Layer& layer, const std::vector<float>& x) const {
    const std::vector<float> gate_up = Multiply(layer.gate_up.host, x);
    const size_t width = static_cast<size_t>(shape_.intermediate);
    std::vector<float> activated(width);
    for (size_t i = 0; i < width; ++i) activated[i] = gate_up[i] / (1 + std::exp(-gate_up[i])) * gate_up[width + i];
    return Multiply(layer.down.host, activated);
  }

  const DecodeShape shape_;
  const std::vector<float> rotations_;
  Tensor tokens_, head_, norm_;
  std::vector<Layer> layers_;
};

// A decoder over a model, with blocks for four sequences in a shuffled order.
class DecoderRig {
 public:
  static constexpr int32_t kSequences = 4;
  static constexpr int32_t kBlocksEach = kPositions / kTokensPerBlock;

  explicit DecoderRig(const DecodeShape& shape, bool float32_logits = true, bool add_in_products = true,
                      bool choose_fastest = false)
      : model_(shape) {
    const int32_t blocks = kSequences * kBlocksEach;
    const int64_t elements =
        int64_t{shape.layers} * blocks * shape.heads.kv_heads * kTokensPerBlock * shape.heads.head_dim;
    keys_ = Upload(std::vector<Half>(static_cast<size_t>(elements), testing::kHalfNan));
    values_ = Upload(std::vector<Half>(static_cast<size_t>(elements), testing::kHalfNan));
    for (int32_t i = 0; i < blocks; ++i) {
      tables_.push_back({i / kBlocksEach, i % kBlocksEach, (i * 7 + 3) % blocks});
    }
    for (int32_t slot = 0; slot < kSequences; ++slot) {
      sampling_.push_back({slot, {.seed = 5000 + static_cast<uint64_t>(slot)}});
    }
    absl::StatusOr<std::unique_ptr<GraphDecoder>> decoder =
        GraphDecoder::Create({.shape = shape,
                              .weights = model_.weights(),
                              .storage = {keys_.data(), values_.data(), shape.layers, blocks, shape.layers * blocks},
                              .max_slots = kSequences,
                              .max_positions = kPositions,
                              .rotations = RotaryTable(kPositions, shape.heads.head_dim, kTheta),
                              .batch_sizes = {2, 4, 8},
                              .chunk_sizes = {4, 16},
                              .float32_logits = float32_logits,
                              .add_in_products = add_in_products,
                              .choose_fastest = choose_fastest});
    EXPECT_TRUE(decoder.ok()) << decoder.status();
    if (decoder.ok()) decoder_ = *std::move(decoder);
  }

  // The settings are passed with the first step.
  absl::Status Launch(const std::vector<DecoderRow>& rows) {
    DecoderStep step;
    step.rows = rows;
    return Launch(step);
  }
  absl::Status Launch(DecoderStep step) {
    if (!std::exchange(set_, true)) step.sampling = sampling_, step.tables = tables_;
    return decoder_->Launch(step);
  }

  std::vector<float> Logits(int32_t row) const {
    const LogitsShape shape = decoder_->logits_shape();
    const int64_t begin = int64_t{row} * shape.stride;
    if (shape.float32) return Download<float>(static_cast<const float*>(decoder_->logits()) + begin, shape.vocab);
    return WidenAll(Download<Half>(static_cast<const Half*>(decoder_->logits()) + begin, shape.vocab));
  }

  HostModel& model() { return model_; }
  GraphDecoder* decoder() { return decoder_.get(); }

 private:
  HostModel model_;
  DeviceBuffer keys_, values_;
  std::vector<TableSetting> tables_;
  std::vector<SamplingSetting> sampling_;
  bool set_ = false;
  std::unique_ptr<GraphDecoder> decoder_;
};

DecodeShape Shape(const HeadCounts& heads, bool qkv_bias, bool qk_norm) {
  return {.layers = 3,
          .hidden = 256,
          .intermediate = 320,
          .vocab = 1003,
          .heads = heads,
          .qkv_bias = qkv_bias,
          .qk_norm = qk_norm};
}

struct DecoderCase {
  DecodeShape shape;
  bool float32_logits = true;
  bool add_in_products = true;
};
class GraphDecoderOverShapes : public ::testing::TestWithParam<DecoderCase> {};
INSTANTIATE_TEST_SUITE_P(Shapes, GraphDecoderOverShapes,
                         ::testing::Values(DecoderCase{Shape({7, 1, 64}, true, false)},
                                           DecoderCase{Shape({4, 2, 128}, false, true)},
                                           DecoderCase{Shape({8, 1, 128}, false, false), true, false},
                                           DecoderCase{Shape({4, 4, 64}, true, true), false}));

double LogProbability(const std::vector<float>& logits, int32_t token) {
  double total = 0;
  for (float logit : logits) total += std::exp(static_cast<double>(logit));
  return logits[static_cast<size_t>(token)] - std::log(total);
}

// Sequences begin at different steps, get four given tokens each, continue with the tokens that they draw, and change
// rows: the rows of a step are the running sequences in an order that rotates.
TEST_P(GraphDecoderOverShapes, GivesWhatAFloat32ForwardGivesForEverySequence) {
  SYNCOPATE_NEED_GPUS(1);
  DecoderRig rig(GetParam().shape, GetParam().float32_logits, GetParam().add_in_products, /*choose_fastest=*/true);
  ASSERT_NE(rig.decoder(), nullptr);
  std::vector<HostModel::Sequence> sequences(DecoderRig::kSequences);
  std::vector<int32_t> next(DecoderRig::kSequences);
  for (int step = 0; step < 40; ++step) {
    std::vector<int32_t> running;
    for (int32_t i = 0; i < DecoderRig::kSequences; ++i) {
      const int32_t sequence = (i + step) % DecoderRig::kSequences;
      if (step >= 3 * sequence) running.push_back(sequence);
    }
    std::vector<DecoderRow> rows;
    for (int32_t sequence : running) {
      const size_t s = static_cast<size_t>(sequence);
      const bool given = sequences[s].length < 4;
      if (given) next[s] = (sequence * 131 + sequences[s].length * 17) % 1003;
      rows.push_back({sequence, given ? next[s] : -1, sequences[s].length + 1, sequences[s].length});
    }
    ASSERT_TRUE(rig.Launch(rows).ok());
    const absl::StatusOr<absl::Span<const Drawn>> drawn = rig.decoder()->Await();
    ASSERT_TRUE(drawn.ok()) << drawn.status();
    ASSERT_EQ(drawn->size(), running.size());
    for (size_t row = 0; row < running.size(); ++row) {
      const size_t s = static_cast<size_t>(running[row]);
      const std::vector<float> expected = rig.model().Step(sequences[s], next[s]);
      const std::vector<float> got = rig.Logits(static_cast<int32_t>(row));
      ASSERT_LT(RelativeError(got, expected), kLogitsError) << "step " << step << " sequence " << s;
      EXPECT_NEAR((*drawn)[row].logprob, LogProbability(got, (*drawn)[row].token), 1e-4) << "step " << step;
      next[s] = (*drawn)[row].token;
    }
  }
}

// Prompts are added as chunks that passes divide, two answers share the last row of a prompt, and running sequences
// continue beside a chunk of another sequence.
TEST_P(GraphDecoderOverShapes, TakesPromptsInChunks) {
  SYNCOPATE_NEED_GPUS(1);
  DecoderRig rig(GetParam().shape, GetParam().float32_logits, GetParam().add_in_products);
  ASSERT_NE(rig.decoder(), nullptr);
  std::vector<HostModel::Sequence> sequences(3);
  std::vector<std::vector<float>> logits(3);
  std::vector<PassRow> rows;
  std::vector<PassDraw> draws;
  auto add_chunk = [&](int32_t slot, int32_t count) {
    HostModel::Sequence& sequence = sequences[static_cast<size_t>(slot)];
    for (int32_t i = 0; i < count; ++i) {
      const int32_t token = (slot * 131 + sequence.length * 17) % 1003;
      logits[static_cast<size_t>(slot)] = rig.model().Step(sequence, token);
      rows.push_back({slot, token, sequence.length});
    }
  };
  auto add_draw = [&](int32_t slot) { draws.push_back({slot, 0, static_cast<int32_t>(rows.size()) - 1}); };
  add_chunk(0, 5), add_draw(0);
  add_chunk(1, 37), add_draw(1), add_draw(3);  // slot 3 has the same prompt
  add_chunk(2, 11);                            // the rest of this prompt follows
  ASSERT_TRUE(rig.Launch(DecoderStep{.chunk_rows = rows, .chunk_draws = draws}).ok());
  absl::StatusOr<absl::Span<const Drawn>> drawn = rig.decoder()->Await();
  ASSERT_TRUE(drawn.ok()) << drawn.status();
  ASSERT_EQ(drawn->size(), 3u);
  std::vector<int32_t> first;
  for (size_t i = 0; i < 3; ++i) {
    const std::vector<float>& expected = logits[i == 0 ? 0 : 1];
    EXPECT_NEAR((*drawn)[i].logprob, LogProbability(expected, (*drawn)[i].token), 0.2) << "draw " << i;
    first.push_back((*drawn)[i].token);
  }

  rows.clear(), draws.clear();
  add_chunk(2, 30), add_draw(2);
  const std::vector<DecoderRow> decode = {{1, -1, 38, 1}, {0, -1, 6, 1}};
  ASSERT_TRUE(rig.Launch(DecoderStep{.chunk_rows = rows, .chunk_draws = draws, .rows = decode}).ok());
  drawn = rig.decoder()->Await();
  ASSERT_TRUE(drawn.ok()) << drawn.status();
  ASSERT_EQ(drawn->size(), 3u);
  EXPECT_NEAR((*drawn)[0].logprob, LogProbability(logits[2], (*drawn)[0].token), 0.2);
  const int32_t last = (*drawn)[0].token;
  EXPECT_LT(RelativeError(rig.Logits(0), rig.model().Step(sequences[1], first[1])), kLogitsError);
  EXPECT_LT(RelativeError(rig.Logits(1), rig.model().Step(sequences[0], first[0])), kLogitsError);

  ASSERT_TRUE(rig.Launch(std::vector<DecoderRow>{{2, -1, 42, 1}}).ok());
  ASSERT_TRUE(rig.decoder()->Await().ok());
  EXPECT_LT(RelativeError(rig.Logits(0), rig.model().Step(sequences[2], last)), kLogitsError);
}

// Two steps in progress give the same tokens as one step at a time.
TEST(GraphDecoderTest, RunsAStepAheadOfTheHost) {
  SYNCOPATE_NEED_GPUS(1);
  auto decode = [](int ahead) {
    DecoderRig rig(Shape({7, 1, 64}, true, false));
    std::vector<int32_t> tokens;
    int launched = 0;
    for (int step = 0; step < 30; ++step) {
      for (; launched < 30 && launched <= step + ahead; ++launched) {
        std::vector<DecoderRow> rows;
        for (int32_t sequence = 0; sequence < 3; ++sequence) {
          rows.push_back({sequence, launched == 0 ? sequence : -1, launched + 1, launched});
        }
        EXPECT_TRUE(rig.Launch(rows).ok());
      }
      const absl::StatusOr<absl::Span<const Drawn>> drawn = rig.decoder()->Await();
      EXPECT_TRUE(drawn.ok()) << drawn.status();
      for (const Drawn& draw : *drawn) tokens.push_back(draw.token);
    }
    return tokens;
  };
  const std::vector<int32_t> one = decode(0), two = decode(1);
  EXPECT_EQ(one.size(), 90u);
  EXPECT_GT(std::set<int32_t>(one.begin(), one.end()).size(), 30u) << "the draws hardly differ";
  EXPECT_EQ(one, two);
}

TEST(GraphDecoderTest, SeesWeightsThatChangeBetweenSteps) {
  SYNCOPATE_NEED_GPUS(1);
  DecoderRig rig(Shape({7, 1, 64}, true, false));
  auto logits = [&rig] {
    EXPECT_TRUE(rig.Launch(std::vector<DecoderRow>{{.slot = 0, .token = 11, .length = 1}}).ok());
    EXPECT_TRUE(rig.decoder()->Await().ok());
    return rig.Logits(0);
  };
  std::vector<float> before = logits();
  rig.model().DoubleFinalNorm();
  const std::vector<float> after = logits();
  for (float& value : before) value *= 2;
  EXPECT_LT(RelativeError(after, before), 1e-2);
}

TEST(GraphDecoderTest, SlicesOfRanksAreTheVocabularyOnceAndBeginOnVectors) {
  for (int32_t vocab : {5, 29, 1003, 100003, 151936, 152064}) {
    for (int32_t world : {1, 2, 4, 8}) {
      int32_t end = 0;
      for (int32_t rank = 0; rank < world; ++rank) {
        const VocabSlice slice = SliceOfRank(vocab, rank, world);
        EXPECT_EQ(slice.begin, end);
        EXPECT_TRUE(slice.begin % 8 == 0 || slice.count == 0);
        EXPECT_LE(slice.count, vocab / world + 8);
        end += slice.count;
      }
      EXPECT_EQ(end, vocab) << "over " << world;
    }
  }
}

TEST(GraphDecoderTest, RefusesAShapeTheKernelsAreNotMadeFor) {
  DecodeShape shape = Shape({4, 4, 16}, false, false);
  EXPECT_THAT(GraphDecoder::Create({.shape = shape}).status(), HasReason("UNSUPPORTED_SHAPE"));
  shape = Shape({9, 1, 64}, false, false);
  EXPECT_THAT(GraphDecoder::Create({.shape = shape}).status(), HasReason("UNSUPPORTED_SHAPE"));
  shape = Shape({4, 4, 64}, false, false);
  shape.hidden = 100;
  EXPECT_THAT(GraphDecoder::Create({.shape = shape}).status(), HasReason("UNSUPPORTED_SHAPE"));
}

}  // namespace
}  // namespace syncopate::rollouter
