#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/unit/trainer/loss/fixture_a.h"
#include "trainer/loss/advantages.h"

// Random batches, compared with torch's autograd on padded rectangles: the figures come from scripts/golden_losses.py,
// whose draws are repeated here.
namespace syncopate::loss {
namespace {

using testing::Integers;
using testing::Tensor;
using testing::Values;

// Uniform numbers in [0, 1): splitmix64 of seed and count.
class Draws {
 public:
  explicit Draws(uint64_t seed) : state_(seed) {}
  double operator()() {
    state_ += 0x9E3779B97F4A7C15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return static_cast<double>((z ^ (z >> 31)) >> 11) / 9007199254740992.0;
  }
  int64_t Integer(int64_t bound) { return static_cast<int64_t>((*this)() * static_cast<double>(bound)); }

 private:
  uint64_t state_;
};

struct Answer {
  std::vector<double> b, o, n, ref;  // of trained tokens alone
  std::vector<int64_t> age;
  double advantage = 0;
  int group = 0;
};

std::vector<Answer> DrawAnswers(int seed) {
  Draws draw(static_cast<uint64_t>(seed));
  std::vector<Answer> answers;
  const int64_t groups = 2 + draw.Integer(10), longest = 1 + draw.Integer(128);
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t members = 1 + draw.Integer(7);
    const bool equal = draw() < 0.2;
    std::vector<double> rewards;
    const size_t first = answers.size();
    for (int64_t i = 0; i < members; ++i) {
      Answer& answer = answers.emplace_back();
      answer.group = static_cast<int>(g);
      rewards.push_back(equal ? 0.5 : static_cast<double>(draw.Integer(5)) / 4);
      const bool empty = draw() < 0.1;
      const int64_t length = 1 + draw.Integer(longest);
      for (int64_t t = 0; t < length; ++t) {
        double b = -4 * draw(), spread = 2 * draw() - 1;
        if (draw() < 0.02) spread = draw() < 0.5 ? 30 : -30;
        const double o = b + 0.8 * spread;
        if (draw() < 0.01) b = -std::numeric_limits<double>::infinity();
        double n = o + 0.6 * (2 * draw() - 1);
        if (draw() < 0.01 && seed % 4 == 3) n = o + 25;
        const double ref = n + 1.5 * (2 * draw() - 1);
        const int64_t age = draw.Integer(12);
        if (empty || draw() < 0.15) continue;
        answer.b.push_back(b);
        answer.o.push_back(o);
        answer.n.push_back(n);
        answer.ref.push_back(ref);
        answer.age.push_back(age);
      }
    }
    const std::vector<double> advantages = GrpoAdvantages(rewards);
    for (size_t i = 0; i < advantages.size(); ++i) answers[first + i].advantage = advantages[i];
  }
  std::erase_if(answers, [](const Answer& answer) { return answer.n.empty(); });
  return answers;
}

BatchExtent GetExtent(const std::vector<Answer>& answers) {
  BatchExtent extent;
  std::map<int, int64_t> groups;
  for (const Answer& answer : answers) {
    extent.tokens += static_cast<double>(answer.n.size());
    extent.answers += 1;
    ++groups[answer.group];
  }
  extent.groups = static_cast<double>(groups.size());
  return extent;
}

// Packs the answers `chosen` of `answers`, one after the other.
TokenBatch Pack(const std::vector<Answer>& answers, const std::vector<size_t>& chosen) {
  std::map<int, double> group_tokens;
  for (const Answer& answer : answers) group_tokens[answer.group] += static_cast<double>(answer.n.size());
  std::vector<double> b, o, n, ref, a, of_groups;
  std::vector<int64_t> age, index, lengths;
  for (size_t i : chosen) {
    const Answer& answer = answers[i];
    for (size_t t = 0; t < answer.n.size(); ++t) {
      b.push_back(answer.b[t]);
      o.push_back(answer.o[t]);
      n.push_back(answer.n[t]);
      ref.push_back(answer.ref[t]);
      age.push_back(answer.age[t]);
      a.push_back(answer.advantage);
      index.push_back(static_cast<int64_t>(lengths.size()));
    }
    lengths.push_back(static_cast<int64_t>(answer.n.size()));
    of_groups.push_back(group_tokens[answer.group]);
  }
  return {.current = Tensor(n),
          .behaviour = Tensor(b),
          .advantage = Tensor(a),
          .proximal = Tensor(o),
          .reference = Tensor(ref),
          .age = Integers(age),
          .answer = Integers(index),
          .answer_tokens = Integers(lengths),
          .group_tokens = Tensor(of_groups)};
}

std::vector<size_t> All(const std::vector<Answer>& answers) {
  std::vector<size_t> all(answers.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = i;
  return all;
}

template <typename Part>
void SetPart(const std::string& value, Part* part) {
  const std::optional<Part> found = FindPart<Part>(value);
  ASSERT_TRUE(found.has_value()) << value;
  *part = *found;
}

LossOptions MakeOptions(const std::string& words) {
  LossOptions options;
  options.max_response_tokens = 128;
  options.geometric_low = 0.9;
  options.geometric_high = 1.1;
  const std::map<std::string, double*> numbers = {{"clip_low", &options.clip_low},
                                                  {"clip_high", &options.clip_high},
                                                  {"dual_clip", &options.dual_clip},
                                                  {"tis_cap", &options.tis_cap},
                                                  {"tis_floor", &options.tis_floor},
                                                  {"veto", &options.veto},
                                                  {"opsm_delta", &options.opsm_delta},
                                                  {"rejection_low", &options.rejection_low},
                                                  {"rejection_high", &options.rejection_high},
                                                  {"kl_tau", &options.kl_tau},
                                                  {"kl_coefficient", &options.kl_coefficient}};
  for (const auto& word : absl::StrSplit(words, ' ', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> half = absl::StrSplit(word, '=');
    const auto& [key, value] = half;
    if (key == "surrogate")
      SetPart(value, &options.surrogate);
    else if (key == "correction")
      SetPart(value, &options.correction);
    else if (key == "proximal")
      SetPart(value, &options.proximal);
    else if (key == "aggregation")
      SetPart(value, &options.aggregation);
    else if (key == "rejection")
      SetPart(value, &options.rejection);
    else if (key == "rejection_level")
      SetPart(value, &options.rejection_level);
    else if (key == "kl_estimator")
      SetPart(value, &options.kl_estimator);
    else if (key == "kl_importance")
      options.kl_importance = true;
    else {
      const bool known = numbers.contains(key) && absl::SimpleAtod(value, numbers.at(key));
      EXPECT_TRUE(known) << key;
    }
  }
  // For an option that the script leaves out, every surrogate has its own default.
  if (words.find("proximal=") == std::string::npos) options.proximal = Proximal::kRecompute;
  if (words.find("aggregation=") == std::string::npos) options.aggregation = Aggregation::kTokenMean;
  return options;
}

struct Case {
  std::string words;
  std::vector<double> figures;  // loss, sums of the gradient
};

std::vector<Case> GoldenCases(int seed) {
  std::ifstream file(absl::StrCat(SYNCOPATE_SOURCE_DIR, "/tests/unit/trainer/loss/golden/random_", seed, ".txt"));
  std::vector<Case> cases;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    const std::vector<std::string> halves = absl::StrSplit(line, '|');
    std::istringstream numbers(halves.at(1));
    Case& made = cases.emplace_back();
    made.words = halves[0];
    for (double figure; numbers >> figure;) made.figures.push_back(figure);
  }
  return cases;
}

std::vector<double> GetFigures(double loss, const std::vector<double>& gradient) {
  std::vector<double> figures = {loss, 0, 0, 0};
  for (size_t i = 0; i < gradient.size(); ++i) {
    figures[1] += gradient[i];
    figures[2] += std::abs(gradient[i]);
    figures[3] += gradient[i] * static_cast<double>(i % 7 + 1);
  }
  return figures;
}

class RandomLossesTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Seeds, RandomLossesTest, ::testing::Range(0, 8));

TEST_P(RandomLossesTest, AgreeWithAutogradOnPaddedRectangles) {
  const std::vector<Answer> answers = DrawAnswers(GetParam());
  const TokenBatch batch = Pack(answers, All(answers));
  const BatchExtent extent = GetExtent(answers);
  const std::vector<Case> cases = GoldenCases(GetParam());
  ASSERT_GT(cases.size(), 30u);
  for (const Case& golden : cases) {
    const LossOptions options = MakeOptions(golden.words);
    const LossGradients made = DifferentiateLoss(batch, extent, options);
    const double loss = LossShare(batch, extent, options).item<double>();
    const std::vector<double> figures = GetFigures(loss, Values(made.dlogprob));
    ASSERT_EQ(golden.figures.size(), figures.size());
    // The files have twelve digits. Sums of gradients may cancel, so the third figure is their size.
    const double sizes[] = {std::abs(golden.figures[0]), golden.figures[2], golden.figures[2], 7 * golden.figures[2]};
    for (size_t i = 0; i < figures.size(); ++i) {
      EXPECT_NEAR(figures[i], golden.figures[i], 1e-9 * std::max(1.0, sizes[i])) << golden.words << " figure " << i;
    }
  }
}

// Deals the answers to `parts` micro-batches in another order and compares the sums of losses, the gradients by answer,
// and the figures.
TEST_P(RandomLossesTest, DoNotDependOnHowAnswersAreDealt) {
  const std::vector<Answer> answers = DrawAnswers(GetParam());
  const BatchExtent extent = GetExtent(answers);
  for (const Case& golden : GoldenCases(GetParam())) {
    const LossOptions options = MakeOptions(golden.words);
    const LossMeasurement whole = MeasureLoss(Pack(answers, All(answers)), extent, options);
    LossMeasurement dealt = LossMeasurement::Nothing(at::kCPU);
    const std::vector<double> gradient =
        Values(DifferentiateLoss(Pack(answers, All(answers)), extent, options).dlogprob);
    double total = 0;
    for (double value : gradient) total += std::abs(value);
    double dealt_total = 0;
    for (size_t part = 0; part < 3; ++part) {
      std::vector<size_t> chosen;
      for (size_t i = answers.size(); i-- > 0;) {
        if (i * 7 % 3 == part) chosen.push_back(i);
      }
      if (chosen.empty()) continue;
      const TokenBatch batch = Pack(answers, chosen);
      dealt.Add(MeasureLoss(batch, extent, options));
      for (double value : Values(DifferentiateLoss(batch, extent, options).dlogprob)) dealt_total += std::abs(value);
    }
    EXPECT_NEAR(dealt_total, total, 1e-9 * std::max(1.0, total)) << golden.words;
    const std::vector<double> sums = Values(whole.sums), dealt_sums = Values(dealt.sums);
    for (size_t i = 0; i < sums.size(); ++i) {
      EXPECT_NEAR(dealt_sums[i], sums[i], 1e-9 * std::max(1.0, std::abs(sums[i]))) << golden.words << " sum " << i;
    }
    EXPECT_EQ(Values(whole.maxima), Values(dealt.maxima));
  }
}

TEST_P(RandomLossesTest, TokensOfAnAnswerMayBeCutWhereTheLossSaysSo) {
  const std::vector<Answer> answers = DrawAnswers(GetParam());
  const BatchExtent extent = GetExtent(answers);
  const TokenBatch batch = Pack(answers, All(answers));
  int cut = 0;
  for (const Case& golden : GoldenCases(GetParam())) {
    const LossOptions options = MakeOptions(golden.words);
    if (options.needs_whole_answers()) continue;
    ++cut;
    const std::vector<double> whole = Values(DifferentiateLoss(batch, extent, options).dlogprob);
    std::vector<double> pieces;
    for (int64_t begin = 0, count = batch.current.size(0); begin < count; begin += 5) {
      const TokenBatch slice = SliceTokens(batch, begin, std::min<int64_t>(5, count - begin));
      const std::vector<double> piece = Values(DifferentiateLoss(slice, extent, options).dlogprob);
      pieces.insert(pieces.end(), piece.begin(), piece.end());
    }
    // Functions of whole vectors and of the rest of a vector differ in the last bits.
    EXPECT_THAT(pieces, testing::Near(1e-15, whole)) << golden.words;
  }
  EXPECT_GT(cut, 10);
}

}  // namespace
}  // namespace syncopate::loss
