#include "model/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "tests/support/status_matchers.h"

namespace syncopate::model {
namespace {

using ::syncopate::testing::HasMessage;
using ::syncopate::testing::HasReason;
using ::syncopate::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string GetFile(const std::string& header, const std::string& data = "") {
  uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + data;
}

std::string Entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return absl::StrCat(R"({"dtype":")", dtype, R"(","shape":)", shape, R"(,"data_offsets":)", offsets, "}");
}

std::string OneTensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return absl::StrCat(R"({"t":)", Entry(dtype, shape, offsets), "}");
}

TEST(SafetensorsTest, ReadsWhatItWrote) {
  std::string weights(24, 'w'), state(16, 's'), random(3, 'r');
  std::vector<StoredTensor> tensors = {{"model.weight", StoredDType::kFloat32, {2, 3}, weights},
                                       {"step", StoredDType::kInt64, {2}, state},
                                       {"scalar", StoredDType::kBFloat16, {}, "zz"},
                                       {"rng", StoredDType::kUInt8, {3}, random},
                                       {"empty", StoredDType::kFloat32, {0, 7}, ""}};
  auto bytes = SerializeSafetensors(tensors, {{"format", "pt"}});
  ASSERT_THAT(bytes, IsOk());
  auto file = SafetensorsFile::Parse(*bytes);
  ASSERT_THAT(file, IsOk());
  ASSERT_EQ(file->tensors().size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(file->tensors()[i].name, tensors[i].name);
    EXPECT_EQ(file->tensors()[i].dtype, tensors[i].dtype);
    EXPECT_EQ(file->tensors()[i].shape, tensors[i].shape);
    EXPECT_EQ(file->tensors()[i].data, tensors[i].data);
  }
  EXPECT_EQ(file->metadata().at("format"), "pt");
  EXPECT_EQ(file->Find("rng")->data.data(), bytes->data() + bytes->size() - 3) << "a view, not a copy";
  EXPECT_THAT(file->Find("none"), HasReason("NO_SUCH_TENSOR"));
}

TEST(SafetensorsTest, StartsTheDataOnAMultipleOfEightBytes) {
  for (int length = 1; length < 20; ++length) {
    std::string name(static_cast<size_t>(length), 'n');
    std::string bytes = SerializeSafetensors({{name, StoredDType::kUInt8, {1}, "x"}}).value();
    EXPECT_EQ((bytes.size() - 1) % 8, 0u);
  }
}

// Written by the reference implementation: safetensors 0.8.0 for Python, safetensors.numpy.save(
//   {"b": numpy.arange(3, dtype="int64"), "a": numpy.array([[1.5, -2.0]], dtype="float32")}, metadata={"k": "v"}).
TEST(SafetensorsTest, ReadsAFileOfTheReferenceImplementation) {
  std::string bytes = GetFile(R"({"__metadata__":{"k":"v"},"b":{"dtype":"I64","shape":[3],"data_offsets":[0,24]},)"
                              R"("a":{"dtype":"F32","shape":[1,2],"data_offsets":[24,32]}}       )",
                              absl::HexStringToBytes("000000000000000001000000000000000200000000000000"
                                                     "0000c03f000000c0"));
  auto file = SafetensorsFile::Parse(bytes);
  ASSERT_THAT(file, IsOk());
  EXPECT_THAT(file->metadata(), ElementsAre(std::pair<const std::string, std::string>("k", "v")));
  auto tensor = file->Find("a");
  ASSERT_THAT(tensor, IsOk());
  float values[2];
  std::memcpy(values, tensor->data.data(), sizeof(values));
  EXPECT_THAT(values, ElementsAre(1.5f, -2.0f));
  EXPECT_EQ(tensor->Spec().value(), (TensorSpec{"a", DType::kFloat32, {1, 2}}));
  EXPECT_THAT(file->Find("b")->Spec(), HasReason("BAD_SAFETENSORS"));
}

TEST(SafetensorsTest, ReadsAFileWithoutTensors) {
  auto file = SafetensorsFile::Parse(GetFile("{}"));
  ASSERT_THAT(file, IsOk());
  EXPECT_THAT(file->tensors(), IsEmpty());
}

struct BadFile {
  const char* what;
  std::string bytes;
};

std::vector<BadFile> BadFiles() {
  const std::string four(4, 'x');
  std::string nested = R"({"__metadata__":{"a":{"b":{"c":{}}}}})";
  return {
      {"shorter than 8 bytes", "1234567"},
      {"header ends beyond the file", GetFile("{}").substr(0, 9)},
      {"over the limit", std::string(8, '\xff') + "{}"},
      {"does not start with '{'", GetFile("")},
      {"does not start with '{'", GetFile(" {}")},
      {"not well formed", GetFile("{}x")},
      {"not well formed", GetFile("{\"t\": nan}")},
      {"comes twice", GetFile("{\"t\":1,\"t\":2}")},
      {"nested deeper", GetFile(nested)},
      {"exactly dtype, shape", GetFile(R"({"t":[]})")},
      {"exactly dtype, shape", GetFile(R"({"t":{"dtype":"F32","shape":[1]}})", four)},
      {"exactly dtype, shape", GetFile(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})", four)},
      {"exactly dtype, shape", GetFile(OneTensor("F32", "[1]", "[0]"), four)},
      {"exactly dtype, shape", GetFile(OneTensor("F32", "{}", "[0,4]"), four)},
      {"a dtype other than", GetFile(OneTensor("F64", "[1]", "[0,8]"), four + four)},
      {"a dtype other than", GetFile(OneTensor("f32", "[1]", "[0,4]"), four)},
      {"whole number", GetFile(OneTensor("F32", "[-1]", "[0,4]"), four)},
      {"whole number", GetFile(OneTensor("F32", "[1.0]", "[0,4]"), four)},
      {"whole number", GetFile(OneTensor("F32", "[true]", "[0,4]"), four)},
      {"whole number", GetFile(OneTensor("F32", "[18446744073709551615]", "[0,4]"), four)},
      {"more than 8 dimensions", GetFile(OneTensor("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), four)},
      {"size overflows", GetFile(OneTensor("F32", "[4611686018427387904,4]", "[0,4]"), four)},
      {"size overflows", GetFile(OneTensor("F32", "[4294967296,4294967296]", "[0,0]"))},
      {"bad data_offsets", GetFile(OneTensor("F32", "[1]", "[4,0]"), four)},
      {"bad data_offsets", GetFile(OneTensor("F32", "[1]", "[-4,0]"), four)},
      {"bad data_offsets", GetFile(OneTensor("F32", "[1]", "[0,\"4\"]"), four)},
      {"needs 4 bytes and its offsets give 3", GetFile(OneTensor("F32", "[1]", "[0,3]"), four)},
      {"instead of 0", GetFile(OneTensor("F32", "[1]", "[4,8]"), four + four)},
      {"ends at byte 4 of the data, and there are 3", GetFile(OneTensor("F32", "[1]", "[0,4]"), "xxx")},
      {"tensors end at byte 4 of 5", GetFile(OneTensor("F32", "[1]", "[0,4]"), four + "x")},
      {"tensors end at byte 0 of 1", GetFile("{}", "x")},
      {"no overlaps",
       GetFile(absl::StrCat(R"({"a":)", Entry("U8", "[4]", "[0,4]"), R"(,"b":)", Entry("U8", "[4]", "[2,6]"), "}"),
               four + "xx")},
      {"no overlaps",
       GetFile(absl::StrCat(R"({"a":)", Entry("U8", "[4]", "[0,4]"), R"(,"b":)", Entry("U8", "[4]", "[0,4]"), "}"),
               four)},
      {"no holes",
       GetFile(absl::StrCat(R"({"a":)", Entry("U8", "[1]", "[0,1]"), R"(,"b":)", Entry("U8", "[1]", "[2,3]"), "}"),
               "xxx")},
      {"__metadata__ is not an object", GetFile(R"({"__metadata__":[]})")},
      {"not a string", GetFile(R"({"__metadata__":{"a":1}})")},
      {"name of 0 bytes", GetFile(absl::StrCat(R"({"":)", Entry("U8", "[0]", "[0,0]"), "}"))},
      {"name of 513 bytes",
       GetFile(absl::StrCat(R"({")", std::string(513, 'n'), R"(":)", Entry("U8", "[0]", "[0,0]"), "}"))},
  };
}

TEST(SafetensorsTest, RefusesEveryBadFileAndSaysWhy) {
  for (const BadFile& bad : BadFiles()) {
    auto file = SafetensorsFile::Parse(bad.bytes);
    EXPECT_THAT(file, HasReason("BAD_SAFETENSORS")) << bad.what;
    EXPECT_THAT(file.status(), HasMessage(HasSubstr(bad.what)));
  }
}

TEST(SafetensorsTest, KeepsToLimitsThatAreGiven) {
  std::string bytes = GetFile(
      absl::StrCat(R"({"a":)", Entry("U8", "[1]", "[0,1]"), R"(,"b":)", Entry("U8", "[1]", "[1,2]"), "}"), "xx");
  EXPECT_THAT(SafetensorsFile::Parse(bytes, {.max_tensors = 2}), IsOk());
  EXPECT_THAT(SafetensorsFile::Parse(bytes, {.max_tensors = 1}), HasReason("BAD_SAFETENSORS"));
  EXPECT_THAT(SafetensorsFile::Parse(bytes, {.max_header_bytes = 20}), HasReason("BAD_SAFETENSORS"));
}

TEST(SafetensorsTest, WritesNothingThatItWouldNotRead) {
  int pieces = 0;
  auto sink = [&pieces](absl::string_view) {
    ++pieces;
    return absl::OkStatus();
  };
  using Tensors = std::vector<StoredTensor>;
  for (const Tensors& tensors :
       {Tensors{{"", StoredDType::kUInt8, {1}, "x"}}, Tensors{{"__metadata__", StoredDType::kUInt8, {1}, "x"}},
        Tensors{{"t", StoredDType::kUInt8, {1}, "x"}, {"t", StoredDType::kUInt8, {1}, "x"}},
        Tensors{{"t", StoredDType::kFloat32, {1}, "x"}}, Tensors{{"t", StoredDType::kUInt8, {-1}, ""}},
        Tensors{{"\xff", StoredDType::kUInt8, {1}, "x"}},
        Tensors{{"t", StoredDType::kUInt8, std::vector<int64_t>(9, 1), "x"}}}) {
    EXPECT_THAT(WriteSafetensors(tensors, {}, sink), HasReason("BAD_SAFETENSORS"));
  }
  EXPECT_EQ(pieces, 0);
}

TEST(SafetensorsTest, PassesOnTheErrorOfTheSink) {
  auto full = [](absl::string_view) { return Error(absl::StatusCode::kResourceExhausted, "NO_SPACE", "full"); };
  EXPECT_THAT(WriteSafetensors({}, {}, full), HasReason("NO_SPACE"));
}

// A damaged file is refused or read as something consistent; the views never leave the buffer.
TEST(SafetensorsTest, StaysInsideTheBufferWhateverIsFlipped) {
  std::string data(64, 'd');
  std::string good = SerializeSafetensors({{"a", StoredDType::kFloat32, {2, 4}, data.substr(0, 32)},
                                           {"b", StoredDType::kBFloat16, {16}, data.substr(32)}},
                                          {{"k", "v"}})
                         .value();
  int refused = 0;
  constexpr uint64_t kRounds = 20000;
  for (uint64_t round = 0; round < kRounds; ++round) {
    std::string bytes = good;
    auto random = Philox4x32(7, round);
    for (uint32_t i = 0; i <= random[0] % 3; ++i)
      bytes[random[i + 1] % bytes.size()] = static_cast<char>(random[0] >> 8);
    if (random[0] % 5 == 0) bytes.resize(random[1] % bytes.size());
    auto file = SafetensorsFile::Parse(bytes);
    if (!file.ok()) ++refused;
    if (!file.ok()) continue;
    for (const StoredTensor& tensor : file->tensors()) {
      EXPECT_GE(tensor.data.data(), bytes.data());
      EXPECT_LE(tensor.data.data() + tensor.data.size(), bytes.data() + bytes.size());
    }
  }
  EXPECT_GT(refused, static_cast<int>(kRounds / 3));
}

}  // namespace
}  // namespace syncopate::model
