#include "trainer/record/step_figure_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>

namespace syncopate::trainer {
namespace {

using ::testing::AnyOf;
using ::testing::StrEq;

const StepFigure& Figure(const std::string& name) {
  for (const StepFigure& figure : StepFigureTable()) {
    if (figure.name == name) return figure;
  }
  ADD_FAILURE() << "no figure " << name;
  return StepFigureTable().front();
}

TEST(StepFiguresTest, TheTableNamesEveryMemberOnceAndNoNameTwice) {
  // Each member has eight bytes, so a table with as many different rows as members fit covers all members.
  static_assert(sizeof(double) == 8 && sizeof(int64_t) == 8);
  constexpr size_t kBeside = sizeof(StepFigures::ages) + sizeof(StepFigures::reward_by_age) +
                             sizeof(StepFigures::samples_by_age) + sizeof(StepFigures::reward_parts);
  EXPECT_EQ(StepFigureTable().size(), (sizeof(StepFigures) - kBeside) / 8);
  std::set<std::string> names, metrics;
  double next = 1;
  StepFigures all;
  for (const StepFigure& figure : StepFigureTable()) {
    EXPECT_TRUE(names.insert(figure.name).second) << figure.name;
    EXPECT_TRUE(metrics.insert(MetricName(figure)).second) << figure.name;
    SetFigureValue(figure, next++, &all);
  }
  double expected = 1;
  for (const StepFigure& figure : StepFigureTable()) EXPECT_EQ(FigureValue(all, figure), expected++) << figure.name;
}

TEST(StepFiguresTest, EveryFigureHasAGroupAndAHelpThatIsAPhrase) {
  for (const StepFigure& figure : StepFigureTable()) {
    EXPECT_THAT(figure.group, AnyOf(StrEq("reward"), StrEq("policy"), StrEq("off_policy"), StrEq("data"), StrEq("time"),
                                    StrEq("memory")))
        << figure.name;
    const std::string help = figure.help;
    ASSERT_FALSE(help.empty()) << figure.name;
    EXPECT_NE(help.back(), '.') << figure.name;
  }
}

TEST(StepFiguresTest, UnitsAndKindsShowInMetricsAsPrometheusHasThem) {
  EXPECT_EQ(MetricName(Figure("entropy")), "syncopate_entropy");
  EXPECT_EQ(MetricHelp(Figure("entropy")), "Mean entropy of the last batch (nats)");
  EXPECT_EQ(MetricName(Figure("trained_tokens")), "syncopate_trained_tokens_total");
  EXPECT_EQ(MetricHelp(Figure("trained_tokens")), "Tokens trained by this process");
  EXPECT_EQ(MetricName(Figure("clip_ratio")), "syncopate_clip_ratio");
}

TEST(StepFiguresTest, AValueThatNoIntegerHoldsIsNone) {
  StepFigures figures;
  for (const double value : {1e300, -1e300, std::numeric_limits<double>::infinity(), std::nan("")}) {
    SetFigureValue(Figure("trained_tokens"), value, &figures);
    EXPECT_EQ(figures.trained_tokens, 0) << value;
  }
  SetFigureValue(Figure("trained_tokens"), 41.6, &figures);
  EXPECT_EQ(figures.trained_tokens, 42);
}

}  // namespace
}  // namespace syncopate::trainer
