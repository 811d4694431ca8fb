#include "tools/api/compatibility.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace syncopate::api {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::MethodDescriptor;
using google::protobuf::OneofDescriptor;
using google::protobuf::ServiceDescriptor;

// "repeated syncopate.v1.MemberStatus", "int64", "map<string, int64>".
std::string WireTypeOf(const FieldDescriptor& field) {
  if (field.is_map()) {
    return absl::StrCat("map<", WireTypeOf(*field.message_type()->map_key()), ", ",
                        WireTypeOf(*field.message_type()->map_value()), ">");
  }
  std::string type = field.type_name();
  if (field.message_type() != nullptr) type = field.message_type()->full_name();
  if (field.enum_type() != nullptr) type = field.enum_type()->full_name();
  return absl::StrCat(field.is_repeated() ? "repeated " : "", type);
}

std::string OneofOf(const FieldDescriptor& field) {
  const OneofDescriptor* oneof = field.real_containing_oneof();
  return oneof == nullptr ? "no oneof" : absl::StrCat("oneof ", oneof->name());
}

// "syncopate.v1.A", or "stream syncopate.v1.A".
std::string Sent(const Descriptor& message, bool streaming) {
  return absl::StrCat(streaming ? "stream " : "", message.full_name());
}

class Comparison {
 public:
  Comparison(const ApiDescriptors& before, const ApiDescriptors& after) : after_(after.pool()) {
    for (const FileDescriptor* file : before.files()) {
      for (const Descriptor* message : MessagesOf(*file)) CompareMessage(*message);
      for (const EnumDescriptor* type : EnumsOf(*file)) CompareEnum(*type);
      for (int i = 0; i < file->service_count(); ++i) CompareService(*file->service(i));
      for (int i = 0; i < file->extension_count(); ++i) CompareExtension(*file->extension(i));
    }
  }

  std::vector<std::string> TakeChanges() { return std::move(changes_); }

 private:
  void Gone(const std::string& name) { changes_.push_back(absl::StrCat(name, ": is gone")); }
  void Compare(const std::string& name, const std::string& what, const std::string& before, const std::string& after) {
    if (before == after) return;
    changes_.push_back(absl::StrCat(name, ": ", what, " was ", before, " and is ", after));
  }

  void CompareMessage(const Descriptor& before) {
    const Descriptor* after = after_.FindMessageTypeByName(before.full_name());
    if (after == nullptr) return Gone(before.full_name());
    for (int i = 0; i < before.field_count(); ++i) {
      const FieldDescriptor* field = after->FindFieldByNumber(before.field(i)->number());
      if (field == nullptr) {
        Gone(before.field(i)->full_name());
      } else {
        CompareField(*before.field(i), *field);
      }
    }
    for (int i = 0; i < before.reserved_range_count(); ++i) {
      const Descriptor::ReservedRange* range = before.reserved_range(i);
      for (int number = range->start; number < range->end; ++number) {
        if (!after->IsReservedNumber(number)) Gone(absl::StrCat(before.full_name(), ".reserved ", number));
      }
    }
  }

  void CompareField(const FieldDescriptor& before, const FieldDescriptor& after) {
    const std::string where = absl::StrCat(before.full_name(), " = ", before.number());
    Compare(where, "the name", before.name(), after.name());
    Compare(where, "the JSON name", before.json_name(), after.json_name());
    Compare(where, "the type", WireTypeOf(before), WireTypeOf(after));
    Compare(where, "its place", OneofOf(before), OneofOf(after));
    Compare(where, "presence", before.has_presence() ? "told" : "not told", after.has_presence() ? "told" : "not told");
  }

  void CompareExtension(const FieldDescriptor& before) {
    const FieldDescriptor* after = after_.FindExtensionByName(before.full_name());
    if (after == nullptr) return Gone(before.full_name());
    Compare(before.full_name(), "the number", absl::StrCat(before.number()), absl::StrCat(after->number()));
    Compare(before.full_name(), "the type", WireTypeOf(before), WireTypeOf(*after));
  }

  void CompareEnum(const EnumDescriptor& before) {
    const EnumDescriptor* after = after_.FindEnumTypeByName(before.full_name());
    if (after == nullptr) return Gone(before.full_name());
    for (int i = 0; i < before.value_count(); ++i) {
      const EnumValueDescriptor* value = after->FindValueByNumber(before.value(i)->number());
      const std::string where = absl::StrCat(before.full_name(), ".", before.value(i)->name());
      if (value == nullptr) {
        Gone(where);
      } else {
        Compare(where, "the name", before.value(i)->name(), value->name());
      }
    }
  }

  void CompareService(const ServiceDescriptor& before) {
    const ServiceDescriptor* after = after_.FindServiceByName(before.full_name());
    if (after == nullptr) return Gone(before.full_name());
    for (int i = 0; i < before.method_count(); ++i) {
      const MethodDescriptor& call = *before.method(i);
      const MethodDescriptor* now = after->FindMethodByName(call.name());
      if (now == nullptr) {
        Gone(call.full_name());
        continue;
      }
      Compare(call.full_name(), "the request", Sent(*call.input_type(), call.client_streaming()),
              Sent(*now->input_type(), now->client_streaming()));
      Compare(call.full_name(), "the response", Sent(*call.output_type(), call.server_streaming()),
              Sent(*now->output_type(), now->server_streaming()));
    }
  }

  const google::protobuf::DescriptorPool& after_;
  std::vector<std::string> changes_;
};

}  // namespace

std::vector<std::string> BreakingChanges(const ApiDescriptors& before, const ApiDescriptors& after) {
  return Comparison(before, after).TakeChanges();
}

}  // namespace syncopate::api
