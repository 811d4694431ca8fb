#include "base/console/text_table.h"

#include <gtest/gtest.h>

namespace syncopate {
namespace {

TEST(TextTableTest, ColumnsAreAsWideAsTheirWidestCellAndLinesEndWithoutBlanks) {
  TextTable table({{"NAME"}, {"N", TextTable::Align::kRight}, {"DETAIL"}});
  table.AddRow({"trainer-0", "7", ""});
  table.AddRow({"r", "12,345", "idle 9%"});
  EXPECT_EQ(table.ToString(),
            "NAME            N  DETAIL\n"
            "trainer-0       7\n"
            "r          12,345  idle 9%\n");
}

TEST(TextTableTest, WithoutRowsThereAreHeadingsOnly) { EXPECT_EQ(TextTable({{"A"}, {"B"}}).ToString(), "A  B\n"); }

}  // namespace
}  // namespace syncopate
