#pragma once

#include <string>
#include <vector>

namespace syncopate::telemetry {

// A plain text table: a line of headings, then rows, columns as wide as their widest cell and two blanks apart.
class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string heading;
    Align align = Align::kLeft;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  // One cell a column.
  void AddRow(std::vector<std::string> cells);
  // Lines end with '\n' and have no trailing blanks.
  std::string ToString() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace syncopate::telemetry
