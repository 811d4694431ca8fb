#include "tools/k8s/document.h"

#include <yaml-cpp/yaml.h>

#include <regex>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace syncopate::k8s {
namespace {

constexpr size_t kLongestNumber = 20;  // a 64-bit integer
constexpr size_t kLongestPlain = 1024;

// The value of a plain scalar. Floats need a digit, so that "." and "e" are text.
Document PlainScalar(const std::string& text) {
  static const std::regex integer("[-+]?(0|[1-9][0-9]*)"), octal("0o?[0-7]+"),
      number("[-+]?(\\.[0-9]+|[0-9]+(\\.[0-9]*)?)([eE][-+]?[0-9]+)?");
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL") return nullptr;
  if (text == "true" || text == "True" || text == "TRUE") return true;
  if (text == "false" || text == "False" || text == "FALSE") return false;
  if (text.size() > kLongestNumber) return text;
  int64_t whole = 0;
  if (std::regex_match(text, integer) && absl::SimpleAtoi(text, &whole)) return whole;
  if (std::regex_match(text, octal)) return std::stoll(text.substr(text[1] == 'o' ? 2 : 1), nullptr, 8);
  double real = 0;
  if (std::regex_match(text, number) && absl::SimpleAtod(text, &real)) return real;
  return text;
}

Document Convert(const YAML::Node& node) {
  switch (node.Type()) {
    case YAML::NodeType::Map: {
      Document map = Document::object();
      for (const auto& entry : node) map[entry.first.Scalar()] = Convert(entry.second);
      return map;
    }
    case YAML::NodeType::Sequence: {
      Document list = Document::array();
      for (const auto& element : node) list.push_back(Convert(element));
      return list;
    }
    case YAML::NodeType::Scalar:
      return node.Tag() == "!" ? Document(node.Scalar()) : PlainScalar(node.Scalar());
    default:
      return nullptr;
  }
}

// Whether this text, written as a plain scalar, reads back as itself.
bool IsPlain(const std::string& text) {
  static const std::regex safe("[A-Za-z0-9_./$(-][A-Za-z0-9_./$()=@+*,|~<>^%-]*([ :][A-Za-z0-9_./$()=@+*,|~<>^%-]+)*");
  if (text.empty() || text.size() > kLongestPlain || text == "-" || text == "---" || text[0] == '%') return false;
  if (text[0] == '-' && text.size() > 1 && text[1] == ' ') return false;
  // ": " separates a key from its value, and " #" begins a comment: neither can match above.
  static const std::regex word_like_yaml_1_1("y|Y|yes|Yes|YES|n|N|no|No|NO|on|On|ON|off|Off|OFF|<<|=");
  static const std::regex time_or_date_like("[0-9][0-9:._-]*");
  return std::regex_match(text, safe) && !std::regex_match(text, time_or_date_like) &&
         !std::regex_match(text, word_like_yaml_1_1) && PlainScalar(text).is_string();
}

std::string Quoted(const std::string& text) {
  return Document(text).dump(-1, ' ', false, Document::error_handler_t::replace);
}

// Whether a literal block can represent the text unchanged.
bool IsBlock(const std::string& text) {
  if (text.find('\n') == std::string::npos || text[0] == ' ' || text[0] == '\n') return false;
  for (char letter : text) {
    if (letter != '\n' && static_cast<unsigned char>(letter) < 0x20) return false;
  }
  return true;
}

class Writer {
 public:
  void Write(const Document& value, size_t indent) {
    if (value.is_object() && !value.empty()) {
      WriteMap(value, indent);
    } else if (value.is_array() && !value.empty()) {
      WriteList(value, indent);
    } else {
      absl::StrAppend(&text_, std::string(indent, ' '), Scalar(value), "\n");
    }
  }
  std::string Take() { return std::move(text_); }

 private:
  static std::string Scalar(const Document& value) {
    if (!value.is_string()) return value.dump();
    const std::string& text = value.get_ref<const std::string&>();
    return IsPlain(text) ? text : Quoted(text);
  }

  void WriteMap(const Document& map, size_t indent) {
    for (const auto& [key, value] : map.items()) {
      absl::StrAppend(&text_, std::string(indent, ' '), IsPlain(key) ? key : Quoted(key), ":");
      WriteAfterKey(value, indent);
    }
  }

  void WriteAfterKey(const Document& value, size_t indent) {
    if (value.is_object() && !value.empty()) {
      text_ += "\n";
      WriteMap(value, indent + 2);
    } else if (value.is_array() && !value.empty()) {
      text_ += "\n";
      WriteList(value, indent);
    } else if (value.is_string() && IsBlock(value.get_ref<const std::string&>())) {
      WriteBlock(value.get<std::string>(), indent + 2);
    } else {
      absl::StrAppend(&text_, " ", Scalar(value), "\n");
    }
  }

  // "|-": no line break at the end, "|": one, "|+": more than one.
  void WriteBlock(const std::string& block, size_t indent) {
    const bool ends = block.back() == '\n', ends_twice = ends && block[block.size() - 2] == '\n';
    absl::StrAppend(&text_, ends_twice ? " |+\n" : ends ? " |\n" : " |-\n");
    for (absl::string_view line : absl::StrSplit(ends ? block.substr(0, block.size() - 1) : block, '\n')) {
      absl::StrAppend(&text_, line.empty() ? "" : std::string(indent, ' '), line, "\n");
    }
  }

  // The first line of an element follows its dash.
  void WriteList(const Document& list, size_t indent) {
    for (const Document& element : list) {
      Writer inner;
      inner.Write(element, indent + 2);
      std::string lines = inner.Take();
      lines[indent] = '-';
      text_ += lines;
    }
  }

  std::string text_;
};

}  // namespace

absl::StatusOr<std::vector<Document>> ParseDocuments(const std::string& text, const std::string& source) {
  std::vector<Document> documents;
  try {
    for (const YAML::Node& node : YAML::LoadAll(text)) {
      Document document = Convert(node);
      if (!document.is_null()) documents.push_back(std::move(document));
    }
  } catch (const YAML::Exception& error) {
    const std::string line = error.mark.is_null() ? "" : absl::StrCat(":", error.mark.line + 1);
    return Error(absl::StatusCode::kInvalidArgument, "BAD_YAML", absl::StrCat(source, line, ": ", error.msg));
  }
  return documents;
}

absl::StatusOr<Document> ParseDocument(const std::string& text, const std::string& source) {
  SYNCOPATE_ASSIGN_OR_RETURN(std::vector<Document> documents, ParseDocuments(text, source));
  if (documents.size() == 1) return std::move(documents[0]);
  return Error(absl::StatusCode::kInvalidArgument, "BAD_YAML",
               absl::StrCat(source, ": expected one YAML document, found ", documents.size()));
}

std::string ToYaml(const Document& document) {
  Writer writer;
  writer.Write(document, 0);
  return writer.Take();
}

std::string ToYaml(const std::vector<Document>& documents) {
  std::string text;
  for (const Document& document : documents) absl::StrAppend(&text, text.empty() ? "" : "---\n", ToYaml(document));
  return text;
}

std::string Text(const Document& document, const std::vector<std::string>& path) {
  const Document* at = &document;
  for (const std::string& key : path) {
    if (!at->is_object() || !at->contains(key)) return "";
    at = &(*at)[key];
  }
  return at->is_string() ? at->get<std::string>() : "";
}

std::string GetName(const Document& object) {
  return absl::StrCat(Text(object, {"kind"}), "/", Text(object, {"metadata", "name"}));
}

}  // namespace syncopate::k8s
