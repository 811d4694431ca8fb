#include "services/telemetry/table.h"

#include <gtest/gtest.h>

namespace syncopate::telemetry {
namespace {

TEST(TableTest, ColumnsAreAsWideAsTheirWidestCellAndLinesEndWithoutBlanks) {
  Table table({{"NAME"}, {"N", Table::Align::kRight}, {"DETAIL"}});
  table.AddRow({"trainer-0", "7", ""});
  table.AddRow({"r", "12,345", "idle 9%"});
  EXPECT_EQ(table.ToString(),
            "NAME            N  DETAIL\n"
            "trainer-0       7\n"
            "r          12,345  idle 9%\n");
}

TEST(TableTest, WithoutRowsThereAreHeadingsOnly) { EXPECT_EQ(Table({{"A"}, {"B"}}).ToString(), "A  B\n"); }

}  // namespace
}  // namespace syncopate::telemetry
