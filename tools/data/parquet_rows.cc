#include "tools/data/parquet_rows.h"

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <parquet/arrow/reader.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file_system.h"
#include "base/utf8.h"

namespace syncopate::data {
namespace {

using Json = nlohmann::ordered_json;

// The size of a batch bounds the memory, not the size of the file.
constexpr int64_t kRowsOfABatch = 4096;
constexpr int kMaxDepth = 64;

absl::Status BadParquet(const std::string& file, const std::string& why) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_PARQUET", absl::StrCat(file, ": ", why));
}

arrow::Result<Json> ValueAt(const arrow::Array& array, int64_t row, int depth);

arrow::Result<Json> TextAt(std::string_view bytes) {
  if (!IsUtf8(absl::string_view(bytes.data(), bytes.size()))) {
    return arrow::Status::Invalid("binary data that is not UTF-8 has no place in JSON; leave the column out");
  }
  return Json(std::string(bytes));
}

arrow::Result<Json> ListAt(const arrow::Array& values, int64_t begin, int64_t end, int depth) {
  Json list = Json::array();
  for (int64_t i = begin; i < end; ++i) {
    ARROW_ASSIGN_OR_RAISE(Json value, ValueAt(values, i, depth));
    list.push_back(std::move(value));
  }
  return list;
}

arrow::Result<Json> StructAt(const arrow::StructArray& array, int64_t row, int depth) {
  Json object = Json::object();
  for (int i = 0; i < array.num_fields(); ++i) {
    ARROW_ASSIGN_OR_RAISE(object[array.type()->field(i)->name()], ValueAt(*array.field(i), row, depth));
  }
  return object;
}

// JSON keys are texts, so other keys are written as text.
arrow::Result<Json> MapAt(const arrow::MapArray& array, int64_t row, int depth) {
  Json object = Json::object();
  for (int64_t i = array.value_offset(row); i < array.value_offset(row + 1); ++i) {
    ARROW_ASSIGN_OR_RAISE(const Json key, ValueAt(*array.keys(), i, depth));
    ARROW_ASSIGN_OR_RAISE(object[key.is_string() ? key.get<std::string>() : key.dump()],
                          ValueAt(*array.items(), i, depth));
  }
  return object;
}

template <typename Array>
arrow::Result<Json> NumberAt(const arrow::Array& array, int64_t row) {
  const auto value = static_cast<const Array&>(array).Value(row);
  if constexpr (std::is_floating_point_v<decltype(value)>) {
    if (!std::isfinite(value)) return Json(nullptr);  // JSON has no other value for it
  }
  return Json(value);
}

arrow::Result<Json> ValueAt(const arrow::Array& array, int64_t row, int depth) {
  if (array.IsNull(row)) return Json(nullptr);
  if (depth > kMaxDepth) return arrow::Status::Invalid("nested deeper than 64");
  switch (array.type_id()) {
    case arrow::Type::NA:
      return Json(nullptr);
    case arrow::Type::BOOL:
      return Json(static_cast<const arrow::BooleanArray&>(array).Value(row));
    case arrow::Type::INT8:
      return NumberAt<arrow::Int8Array>(array, row);
    case arrow::Type::INT16:
      return NumberAt<arrow::Int16Array>(array, row);
    case arrow::Type::INT32:
      return NumberAt<arrow::Int32Array>(array, row);
    case arrow::Type::INT64:
      return NumberAt<arrow::Int64Array>(array, row);
    case arrow::Type::UINT8:
      return NumberAt<arrow::UInt8Array>(array, row);
    case arrow::Type::UINT16:
      return NumberAt<arrow::UInt16Array>(array, row);
    case arrow::Type::UINT32:
      return NumberAt<arrow::UInt32Array>(array, row);
    case arrow::Type::UINT64:
      return NumberAt<arrow::UInt64Array>(array, row);
    case arrow::Type::FLOAT:
      return NumberAt<arrow::FloatArray>(array, row);
    case arrow::Type::DOUBLE:
      return NumberAt<arrow::DoubleArray>(array, row);
    case arrow::Type::STRING:
    case arrow::Type::BINARY:
      return TextAt(static_cast<const arrow::BinaryArray&>(array).GetView(row));
    case arrow::Type::LARGE_STRING:
    case arrow::Type::LARGE_BINARY:
      return TextAt(static_cast<const arrow::LargeBinaryArray&>(array).GetView(row));
    case arrow::Type::LIST: {
      const auto& list = static_cast<const arrow::ListArray&>(array);
      return ListAt(*list.values(), list.value_offset(row), list.value_offset(row + 1), depth + 1);
    }
    case arrow::Type::LARGE_LIST: {
      const auto& list = static_cast<const arrow::LargeListArray&>(array);
      return ListAt(*list.values(), list.value_offset(row), list.value_offset(row + 1), depth + 1);
    }
    case arrow::Type::FIXED_SIZE_LIST: {
      const auto& list = static_cast<const arrow::FixedSizeListArray&>(array);
      return ListAt(*list.values(), list.value_offset(row), list.value_offset(row + 1), depth + 1);
    }
    case arrow::Type::STRUCT:
      return StructAt(static_cast<const arrow::StructArray&>(array), row, depth + 1);
    case arrow::Type::MAP:
      return MapAt(static_cast<const arrow::MapArray&>(array), row, depth + 1);
    // A dictionary stores repeated texts once; the row gets the text.
    case arrow::Type::DICTIONARY: {
      const auto& words = static_cast<const arrow::DictionaryArray&>(array);
      return ValueAt(*words.dictionary(), words.GetValueIndex(row), depth + 1);
    }
    default: {
      // JSON has no dates, times and decimals: they are written as Arrow prints them.
      ARROW_ASSIGN_OR_RAISE(const std::shared_ptr<arrow::Scalar> scalar, array.GetScalar(row));
      return TextAt(scalar->ToString());
    }
  }
}

// Appends the rows of a file to the output.
class Converter {
 public:
  explicit Converter(AppendFile* output) : output_(output) {}

  absl::Status Add(const std::string& file) {
    const arrow::Status read = Read(file);
    SYNCOPATE_RETURN_IF_ERROR(written_);
    return read.ok() ? absl::OkStatus() : BadParquet(file, read.message());
  }
  int64_t rows() const { return rows_; }

 private:
  arrow::Status Read(const std::string& file) {
    ARROW_ASSIGN_OR_RAISE(auto input, arrow::io::ReadableFile::Open(file));
    parquet::arrow::FileReaderBuilder builder;
    ARROW_RETURN_NOT_OK(builder.Open(input));
    builder.properties(parquet::ArrowReaderProperties());
    std::unique_ptr<parquet::arrow::FileReader> reader;
    ARROW_RETURN_NOT_OK(builder.Build(&reader));
    reader->set_batch_size(kRowsOfABatch);
    ARROW_ASSIGN_OR_RAISE(auto batches, reader->GetRecordBatchReader());
    std::shared_ptr<arrow::RecordBatch> batch;
    while (true) {
      ARROW_RETURN_NOT_OK(batches->ReadNext(&batch));
      if (batch == nullptr) return arrow::Status::OK();
      // A hostile file may have wrong offsets, so they are checked.
      ARROW_RETURN_NOT_OK(batch->ValidateFull());
      ARROW_RETURN_NOT_OK(Write(*batch));
    }
  }

  arrow::Status Write(const arrow::RecordBatch& batch) {
    std::string lines;
    for (int64_t row = 0; row < batch.num_rows(); ++row) {
      Json object = Json::object();
      for (int column = 0; column < batch.num_columns(); ++column) {
        ARROW_ASSIGN_OR_RAISE(object[batch.column_name(column)], ValueAt(*batch.column(column), row, 0));
      }
      absl::StrAppend(&lines, object.dump(-1, ' ', false, Json::error_handler_t::replace), "\n");
    }
    rows_ += batch.num_rows();
    written_ = output_->Append(lines);
    return written_.ok() ? arrow::Status::OK() : arrow::Status::IOError("the output cannot be written");
  }

  AppendFile* const output_;
  int64_t rows_ = 0;
  absl::Status written_;
};

}  // namespace

absl::StatusOr<int64_t> ConvertToJsonl(const std::vector<std::string>& files, const std::string& output) {
  FileSystem* disk = FileSystem::Real();
  if (disk->FileBytes(output).ok()) {
    return Error(absl::StatusCode::kAlreadyExists, "FILE_EXISTS", absl::StrCat(output, " is there already"));
  }
  // The output appears complete or not at all. A leftover of an earlier attempt is removed.
  const std::string beside = output + ".part";
  SYNCOPATE_RETURN_IF_ERROR(disk->RemoveTree(beside));
  SYNCOPATE_ASSIGN_OR_RETURN(auto file, disk->OpenForAppend(beside, FileSystem::OpenMode::kCreateNew));
  Converter converter(file.get());
  absl::Status status;
  for (const std::string& one : files) {
    if (status.ok()) status = converter.Add(one);
  }
  if (status.ok()) status = file->Sync();
  if (status.ok()) status = disk->Rename(beside, output);
  if (!status.ok()) {
    disk->RemoveTree(beside).IgnoreError();  // its contents are incomplete
    return status;
  }
  SYNCOPATE_RETURN_IF_ERROR(disk->SyncDir(ParentPath(output)));
  return converter.rows();
}

}  // namespace syncopate::data
