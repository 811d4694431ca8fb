#include "tools/api/naming.h"

#include <map>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace syncopate::api {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;

bool IsPascalCase(const std::string& name) {
  if (name.empty() || !absl::ascii_isupper(name[0])) return false;
  for (char c : name) {
    if (!absl::ascii_isalnum(c)) return false;
  }
  return true;
}

// Words of small letters and digits between single underscores.
bool IsLowerSnakeCase(const std::string& name) {
  if (name.empty() || !absl::ascii_islower(name[0]) || name.back() == '_' || absl::StrContains(name, "__"))
    return false;
  for (char c : name) {
    if (c != '_' && !absl::ascii_islower(c) && !absl::ascii_isdigit(c)) return false;
  }
  return true;
}

bool IsUpperSnakeCase(const std::string& name) {
  return name == absl::AsciiStrToUpper(name) && IsLowerSnakeCase(absl::AsciiStrToLower(name));
}

// "AckResult" gives "ACK_RESULT", "HTTPCode" gives "HTTP_CODE", "DType" gives "D_TYPE".
std::string UpperSnakeCase(const std::string& name) {
  std::string words;
  for (size_t i = 0; i < name.size(); ++i) {
    const bool after_word = i > 0 && absl::ascii_islower(name[i - 1]);
    const bool before_word = i + 1 < name.size() && absl::ascii_islower(name[i + 1]);
    if (i > 0 && absl::ascii_isupper(name[i]) && (after_word || before_word)) words.push_back('_');
    words.push_back(absl::ascii_toupper(name[i]));
  }
  return words;
}

// "v1", "v2beta1".
bool IsVersion(const std::string& word) {
  if (word.size() < 2 || word[0] != 'v' || !absl::ascii_isdigit(word[1])) return false;
  return IsLowerSnakeCase(word) && !absl::StrContains(word, "_");
}

class Checker {
 public:
  explicit Checker(const ApiDescriptors& api) {
    for (const FileDescriptor* file : api.files()) CheckFile(*file);
    for (const auto& [message, uses] : uses_) {
      if (uses.size() < 2) continue;
      Report(message, absl::StrCat("a message of one call alone, not of ", uses[0], " and ", uses[1]),
             "RPC_REQUEST_RESPONSE_UNIQUE");
    }
  }

  std::vector<std::string> TakeBreaches() { return std::move(breaches_); }

 private:
  void Report(const std::string& where, const std::string& wanted, const char* rule) {
    breaches_.push_back(absl::StrCat(where, ": ", wanted, " (", rule, ")"));
  }
  void Expect(bool kept, const std::string& where, const std::string& wanted, const char* rule) {
    if (!kept) Report(where, wanted, rule);
  }

  void CheckFile(const FileDescriptor& file) {
    const std::string& name = file.name();
    const size_t slash = name.rfind('/');
    const std::string folder = slash == std::string::npos ? "" : name.substr(0, slash);
    const std::string stem = name.substr(folder.empty() ? 0 : slash + 1);
    Expect(file.syntax() == FileDescriptor::SYNTAX_PROTO3, name, "syntax = \"proto3\"", "SYNTAX_SPECIFIED");
    Expect(IsLowerSnakeCase(stem.substr(0, stem.find('.'))), name, "a lower_snake_case.proto", "FILE_LOWER_SNAKE_CASE");
    Expect(folder == absl::StrReplaceAll(file.package(), {{".", "/"}}), name,
           absl::StrCat("in the folder of its package, ", file.package()), "PACKAGE_DIRECTORY_MATCH");
    Expect(IsLowerSnakeCase(absl::StrReplaceAll(file.package(), {{".", "_"}})), name, "a lower_snake.case package",
           "PACKAGE_LOWER_SNAKE_CASE");
    Expect(IsVersion(file.package().substr(file.package().rfind('.') + 1)), name, "a package that ends in a version",
           "PACKAGE_VERSION_SUFFIX");
    Expect(file.public_dependency_count() == 0, name, "no public import", "IMPORT_NO_PUBLIC");
    Expect(file.weak_dependency_count() == 0, name, "no weak import", "IMPORT_NO_WEAK");
    CheckImportsAreUsed(file);
    for (const Descriptor* message : MessagesOf(file)) CheckMessage(*message);
    for (const EnumDescriptor* type : EnumsOf(file)) CheckEnum(*type);
    for (int i = 0; i < file.service_count(); ++i) CheckService(*file.service(i));
  }

  void CheckImportsAreUsed(const FileDescriptor& file) {
    std::set<const FileDescriptor*> used;
    for (const Descriptor* message : MessagesOf(file)) {
      for (int i = 0; i < message->field_count(); ++i) {
        const FieldDescriptor* field = message->field(i);
        NoteOptions(field->options());
        if (field->is_map()) field = field->message_type()->map_value();
        if (field->message_type() != nullptr) used.insert(field->message_type()->file());
        if (field->enum_type() != nullptr) used.insert(field->enum_type()->file());
      }
    }
    for (int i = 0; i < file.extension_count(); ++i) used.insert(file.extension(i)->containing_type()->file());
    for (int i = 0; i < file.service_count(); ++i) {
      for (int m = 0; m < file.service(i)->method_count(); ++m) {
        used.insert(file.service(i)->method(m)->input_type()->file());
        used.insert(file.service(i)->method(m)->output_type()->file());
      }
    }
    for (int i = 0; i < file.dependency_count(); ++i) {
      Expect(used.count(file.dependency(i)) > 0 || options_used_.count(file.dependency(i)->name()) > 0, file.name(),
             absl::StrCat("no import of ", file.dependency(i)->name(), ", of which it uses nothing"), "IMPORT_USED");
    }
  }

  // Extensions are those of this program's own descriptors, so their files are known by name.
  void NoteOptions(const google::protobuf::FieldOptions& options) {
    std::vector<const FieldDescriptor*> set;
    options.GetReflection()->ListFields(options, &set);
    for (const FieldDescriptor* field : set) {
      if (field->is_extension()) options_used_.insert(field->file()->name());
    }
  }

  void CheckMessage(const Descriptor& message) {
    Expect(IsPascalCase(message.name()), message.full_name(), "a PascalCase name", "MESSAGE_PASCAL_CASE");
    for (int i = 0; i < message.field_count(); ++i) {
      const FieldDescriptor& field = *message.field(i);
      Expect(IsLowerSnakeCase(field.name()), field.full_name(), "a lower_snake_case name", "FIELD_LOWER_SNAKE_CASE");
      Expect(!field.is_required(), field.full_name(), "not required", "FIELD_NOT_REQUIRED");
    }
    for (int i = 0; i < message.real_oneof_decl_count(); ++i) {
      const std::string& name = message.oneof_decl(i)->name();
      Expect(IsLowerSnakeCase(name), message.full_name() + "." + name, "a lower_snake_case name",
             "ONEOF_LOWER_SNAKE_CASE");
    }
  }

  void CheckEnum(const EnumDescriptor& type) {
    const std::string prefix = UpperSnakeCase(type.name()) + "_";
    Expect(IsPascalCase(type.name()), type.full_name(), "a PascalCase name", "ENUM_PASCAL_CASE");
    Expect(!type.options().allow_alias(), type.full_name(), "no aliases", "ENUM_NO_ALLOW_ALIAS");
    Expect(type.value(0)->number() == 0, type.full_name(), "a first value of 0", "ENUM_FIRST_VALUE_ZERO");
    Expect(absl::EndsWith(type.value(0)->name(), "_UNSPECIFIED"), type.full_name(), "a zero value _UNSPECIFIED",
           "ENUM_ZERO_VALUE_SUFFIX");
    for (int i = 0; i < type.value_count(); ++i) {
      const std::string& name = type.value(i)->name();
      Expect(IsUpperSnakeCase(name), type.full_name() + "." + name, "an UPPER_SNAKE_CASE name",
             "ENUM_VALUE_UPPER_SNAKE_CASE");
      Expect(absl::StartsWith(name, prefix), type.full_name() + "." + name,
             absl::StrCat("a name that begins with ", prefix), "ENUM_VALUE_PREFIX");
    }
  }

  void CheckService(const ServiceDescriptor& service) {
    Expect(IsPascalCase(service.name()), service.full_name(), "a PascalCase name", "SERVICE_PASCAL_CASE");
    Expect(absl::EndsWith(service.name(), "Service"), service.full_name(), "a name that ends in Service",
           "SERVICE_SUFFIX");
    for (int i = 0; i < service.method_count(); ++i) {
      const MethodDescriptor& method = *service.method(i);
      Expect(IsPascalCase(method.name()), method.full_name(), "a PascalCase name", "RPC_PASCAL_CASE");
      CheckMessageOfCall(method, *method.input_type(), "Request", "RPC_REQUEST_STANDARD_NAME");
      CheckMessageOfCall(method, *method.output_type(), "Response", "RPC_RESPONSE_STANDARD_NAME");
    }
  }

  void CheckMessageOfCall(const MethodDescriptor& method, const Descriptor& message, const char* suffix,
                          const char* rule) {
    const std::string plain = method.name() + suffix;
    Expect(message.name() == plain || message.name() == method.service()->name() + plain, method.full_name(),
           absl::StrCat(plain, " or ", method.service()->name(), plain, ", not ", message.name()), rule);
    uses_[message.full_name()].push_back(method.full_name());
  }

  std::vector<std::string> breaches_;
  std::set<std::string> options_used_;                    // files whose extensions annotate a field
  std::map<std::string, std::vector<std::string>> uses_;  // message -> the calls that send it
};

}  // namespace

std::vector<std::string> NamingBreaches(const ApiDescriptors& api) { return Checker(api).TakeBreaches(); }

}  // namespace syncopate::api
