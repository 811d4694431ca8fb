#include "base/console/text_table.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace syncopate {

void TextTable::AddRow(std::vector<std::string> cells) {
  SYNCOPATE_CHECK(cells.size() == columns_.size());
  rows_.push_back(std::move(cells));
}

std::string TextTable::ToString() const {
  std::vector<size_t> widths;
  for (size_t c = 0; c < columns_.size(); ++c) {
    size_t width = columns_[c].heading.size();
    for (const auto& row : rows_) width = std::max(width, row[c].size());
    widths.push_back(width);
  }
  std::string text;
  auto append_line = [&](auto cell_of) {
    std::string line;
    for (size_t c = 0; c < columns_.size(); ++c) {
      std::string cell = cell_of(c);
      std::string pad(widths[c] - cell.size(), ' ');
      bool right = columns_[c].align == Align::kRight;
      absl::StrAppend(&line, c == 0 ? "" : "  ", right ? pad : "", cell, right ? "" : pad);
    }
    absl::StripTrailingAsciiWhitespace(&line);
    absl::StrAppend(&text, line, "\n");
  };
  append_line([this](size_t c) { return columns_[c].heading; });
  for (const auto& row : rows_) append_line([&row](size_t c) { return row[c]; });
  return text;
}

}  // namespace syncopate
