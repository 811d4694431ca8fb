#include "services/wire/model_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/small_model.h"
#include "tests/support/status_matchers.h"

namespace syncopate::wire {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::HasMessage;
using testing::HasReason;
using ::testing::HasSubstr;
using testing::IsOk;

// Expects that a model built from the message has the same manifest. Fields that the manifest does not show are
// compared one by one.
void ExpectSame(const model::ModelConfig& before) {
  const auto after = FromProto(ToProto(before));
  ASSERT_THAT(after, IsOk());
  EXPECT_EQ(ToProto(*after).SerializeAsString(), ToProto(before).SerializeAsString());
  EXPECT_EQ(model::MakeManifest(*after, DType::kFloat32)->fingerprint(),
            model::MakeManifest(before, DType::kFloat32)->fingerprint());
  EXPECT_EQ(after->lora, before.lora);
  EXPECT_EQ(after->rope_scaling, before.rope_scaling);
  EXPECT_EQ(after->rope_theta, before.rope_theta);
  EXPECT_EQ(after->rms_norm_eps, before.rms_norm_eps);
  EXPECT_EQ(after->max_position_embeddings, before.max_position_embeddings);
}

TEST(ModelCodecTest, AShapeComesBackAsItWas) {
  model::ModelConfig shape;
  shape.vocab_size = 72;
  shape.rope_theta = 1234.5;
  shape.rms_norm_eps = 1e-5;
  shape.max_position_embeddings = 77;
  ExpectSame(shape);
  for (bool* flag : {&shape.qk_norm, &shape.qkv_bias, &shape.output_bias, &shape.mlp_bias, &shape.learned_positions,
                     &shape.tie_word_embeddings}) {
    *flag = !*flag;
    ExpectSame(shape);
  }
}

TEST(ModelCodecTest, SoDoesEveryKindOfRopeScaling) {
  using Type = model::RopeScaling::Type;
  model::ModelConfig shape;
  shape.vocab_size = 72;
  for (Type type : {Type::kLinear, Type::kLlama3, Type::kYarn}) {
    shape.rope_scaling = {.type = type,
                          .factor = 8,
                          .original_context = 16,
                          .low_freq_factor = 1.5,
                          .high_freq_factor = 3,
                          .beta_fast = 30,
                          .beta_slow = 2,
                          .truncate = false,
                          .attention_factor = 1.25};
    ExpectSame(shape);
  }
}

TEST(ModelCodecTest, SoDoWindowsAndExperts) {
  model::ModelConfig shape = testing::RoutedModel();
  ExpectSame(shape);
  shape.layer_windows = {0, 8, 0};
  ExpectSame(shape);
  const v1::ModelShape message = ToProto(shape);
  EXPECT_THAT(message.layer_kinds(), ElementsAre("full", "gated", "routed", "window"));
}

TEST(ModelCodecTest, SoDoAdapters) {
  model::ModelConfig shape = testing::WithAdapters(testing::RoutedModel());
  ExpectSame(shape);
  shape.lora.rank_stabilised = true;
  shape.lora.projections = {"k_proj"};
  ExpectSame(shape);
  v1::ModelShape message = ToProto(shape);
  message.mutable_lora()->set_projections(0, "z_proj");
  EXPECT_THAT(FromProto(message), HasReason("BAD_MODEL"));
}

TEST(ModelCodecTest, AKindOfLayerThatIsNotKnownIsRefusedByItsName) {
  v1::ModelShape message = ToProto(testing::RoutedModel());
  message.add_layer_kinds("linear_attention");
  EXPECT_THAT(FromProto(message),
              AllOf(HasReason("UNKNOWN_LAYER_KIND"), HasMessage(HasSubstr("kind 'linear_attention'"))));
}

TEST(ModelCodecTest, LayersThatThePeerUnderstandsOtherwiseAreRefused) {
  v1::ModelShape message = ToProto(testing::RoutedModel());
  message.set_spec_digest(message.spec_digest() + 1);
  EXPECT_THAT(FromProto(message), HasReason("OTHER_MODEL"));
  message.set_spec_digest(0);  // the message of a build that knew only dense layers
  EXPECT_THAT(FromProto(message), IsOk());
}

TEST(ModelCodecTest, RefusesWhatIsNoModel) {
  EXPECT_FALSE(FromProto(v1::ModelShape()).ok());
  model::ModelConfig shape;
  shape.vocab_size = 72;
  v1::ModelShape message = ToProto(shape);
  message.mutable_rope_scaling()->set_type("spiral");
  EXPECT_THAT(FromProto(message), HasReason("BAD_MESSAGE"));
  message = ToProto(shape);
  message.set_head_dim(-4);
  EXPECT_FALSE(FromProto(message).ok());
}

}  // namespace
}  // namespace syncopate::wire
