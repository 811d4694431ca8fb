#pragma once

#include <string>
#include <vector>

namespace syncopate {

// A plain text table: a line of headings, then rows, columns as wide as their widest cell and two blanks apart.
class TextTable {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string heading;
    Align align = Align::kLeft;
  };

  explicit TextTable(std::vector<Column> columns) : columns_(std::move(columns)) {}
  // `cells`: one for each column.
  void AddRow(std::vector<std::string> cells);
  // Lines end with '\n' and have no trailing blanks.
  std::string ToString() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace syncopate
