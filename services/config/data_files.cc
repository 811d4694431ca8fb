#include "services/config/data_files.h"

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace syncopate::config {
namespace {

constexpr double kMaxWeight = 1000;

absl::Status Expected(const std::string& text) { return Error(absl::StatusCode::kInvalidArgument, "BAD_CONFIG", text); }

}  // namespace

absl::StatusOr<std::vector<DataFile>> ParseDataFiles(const std::string& list) {
  std::vector<DataFile> files;
  if (absl::StripAsciiWhitespace(list).empty()) return files;
  for (absl::string_view item : absl::StrSplit(list, ',')) {
    DataFile file;
    const size_t star = item.rfind(" * ");
    if (star != absl::string_view::npos) {
      const bool number = absl::SimpleAtod(item.substr(star + 3), &file.weight);
      if (!number || !(file.weight > 0) || !(file.weight <= kMaxWeight)) {
        return Expected("paths with commas between them; a weight after ' * ' is above 0 and at most 1000");
      }
      item = item.substr(0, star);
    }
    file.path = std::string(absl::StripAsciiWhitespace(item));
    if (file.path.empty()) return Expected("paths with commas between them, of which none is empty");
    files.push_back(std::move(file));
  }
  return files;
}

}  // namespace syncopate::config
