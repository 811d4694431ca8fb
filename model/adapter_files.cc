#include "model/adapter_files.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/digest.h"
#include "base/file_system.h"
#include "base/git_lfs.h"
#include "base/reasons.h"
#include "base/strict_json.h"
#include "model/decoder_spec.h"
#include "model/model_export.h"
#include "model/model_folder.h"
#include "model/weight_files.h"

namespace syncopate::model {
namespace {

using Json = nlohmann::json;

constexpr JsonLimits kAdapterLimits = {.max_bytes = 1 << 20, .max_depth = 16};
constexpr char kAllLinear[] = "all-linear";
constexpr char kBaseDigest[] = "base_digest";
constexpr size_t kShown = 128;

absl::Status BadAdapter(const std::string& path, const std::string& what) {
  return Error(absl::StatusCode::kInvalidArgument, "BAD_ADAPTER", absl::StrCat(path, ": ", what));
}

std::string Shown(const Json& value) {
  const std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  return text.size() <= kShown ? text : absl::StrCat(text.substr(0, kShown), "...");
}

// Whether a key has a value that asks for nothing: PEFT writes all keys that it knows.
bool IsUnused(const Json& value) {
  return value.is_null() || value == false || (value.is_number() && value == 0) ||
         ((value.is_object() || value.is_array()) && value.empty()) || value == "";
}

// Keys that are read, and keys that change nothing that is computed with the adapters.
constexpr const char* kKnownKeys[] = {"r",         "lora_alpha", "target_modules",   "use_rslora",
                                      "peft_type", "bias",       "init_lora_weights"};
constexpr const char* kNeedlessKeys[] = {
    "auto_mapping",  "base_model_name_or_path", "inference_mode", "megatron_core", "peft_version", "revision",
    "task_type",     "qalora_group_size",       "runtime_config", "eva_config",    "corda_config", "lora_ga_config",
    "layers_pattern"};
// Keys whose other values are refused, with the words for what they ask for.
constexpr std::pair<const char*, const char*> kRefusedKeys[] = {
    {"use_dora", "DoRA"},
    {"lora_dropout", "dropout"},
    {"lora_bias", "biases of adapters"},
    {"modules_to_save", "modules that are trained whole"},
    {"rank_pattern", "ranks that differ between modules"},
    {"alpha_pattern", "alphas that differ between modules"},
    {"layers_to_transform", "adapters in some layers only"},
    {"exclude_modules", "excluded modules"},
    {"fan_in_fan_out", "transposed weights"},
    {"target_parameters", "adapters of parameters that are no modules"},
    {"trainable_token_indices", "trained embeddings"},
    {"layer_replication", "repeated layers"},
    {"loftq_config", "a quantised base"},
};

// Ways to begin that leave the base as it is. The others (pissa, olora, loftq, corda, ...) subtract what A and B begin
// with from the base.
bool LeavesBase(const Json& initial) {
  return initial.is_boolean() || initial == "gaussian" || initial == "eva" || initial == "orthogonal";
}

absl::Status CheckKeys(const std::string& path, const Json& json) {
  for (const auto& [key, what] : kRefusedKeys) {
    if (!json.contains(key) || IsUnused(json[key])) continue;
    return BadAdapter(path, absl::StrCat(key, " is ", Shown(json[key]), ": ", what, " are not supported"));
  }
  if (json.value("peft_type", Json()) != "LORA") {
    return BadAdapter(path, absl::StrCat("peft_type is ", Shown(json.value("peft_type", Json())),
                                         "; only LORA adapters are supported"));
  }
  if (const Json bias = json.value("bias", Json("none")); bias != "none") {
    return BadAdapter(path, absl::StrCat("bias is ", Shown(bias), ": trained biases are not supported"));
  }
  if (const Json initial = json.value("init_lora_weights", Json(true)); !LeavesBase(initial)) {
    return BadAdapter(path, absl::StrCat("init_lora_weights is ", Shown(initial),
                                         ", which changes the base weights: convert the adapters in PEFT "
                                         "(path_initial_model_for_weight_conversion), or merge them"));
  }
  for (const auto& [key, value] : json.items()) {
    const bool known = absl::c_linear_search(kKnownKeys, key) || absl::c_linear_search(kNeedlessKeys, key);
    if (known || IsUnused(value)) continue;
    return BadAdapter(path, absl::StrCat(absl::CHexEscape(key.substr(0, kShown)), " is ", Shown(value),
                                         ": this key is not known; if it changes nothing, set it to null"));
  }
  return absl::OkStatus();
}

// Whether a module's name is one that the directory has adapters for.
using Selects = std::function<bool(const std::string& module)>;

absl::StatusOr<Selects> ReadTargets(const std::string& path, const Json& targets, const CompilePattern& compile) {
  if (targets == kAllLinear) return Selects([](const std::string& module) { return module != "lm_head"; });
  if (targets.is_string()) {
    if (compile == nullptr) {
      return BadAdapter(path, absl::StrCat("target_modules is the pattern ", Shown(targets),
                                           "; name the modules in a list, or all-linear"));
    }
    auto matches = compile(targets.get<std::string>());
    if (!matches.ok()) return Annotate(matches.status(), absl::StrCat(path, ": target_modules"));
    return Selects([matches = *std::move(matches)](const std::string& module) { return matches(module); });
  }
  const bool is_list = targets.is_array() && !targets.empty() &&
                       absl::c_all_of(targets, [](const Json& one) { return one.is_string(); });
  if (!is_list) {
    return BadAdapter(path, absl::StrCat("target_modules is ", Shown(targets),
                                         "; it must be a list of names, a pattern, or all-linear"));
  }
  return Selects([names = targets.get<std::vector<std::string>>()](const std::string& module) {
    return absl::c_any_of(names, [&](const std::string& name) {
      return module == name || absl::EndsWith(module, absl::StrCat(".", name));
    });
  });
}

// A module of the model that is a matrix, by its whole name.
struct Matrix {
  std::string name;
  bool takes_adapter = false;
  std::string projection() const { return name.substr(name.rfind('.') + 1); }
};

std::vector<Matrix> ListMatrices(const ModelConfig& base) {
  const DecoderSpec spec = MakeDecoderSpec(base);
  std::vector<Matrix> matrices;
  auto add = [&](const std::vector<ModuleSpec>& modules, const std::string& prefix) {
    for (const ModuleSpec& module : modules) {
      if (module.shape.size() == 2) matrices.push_back({prefix + module.name, module.takes_adapter});
    }
  };
  add(spec.output, "");
  for (size_t i = 0; i < spec.layers.size(); ++i) add(spec.layers[i].modules, absl::StrCat("model.layers.", i, "."));
  return matrices;
}

absl::StatusOr<std::vector<std::string>> SelectProjections(const std::string& path, const Json& targets,
                                                           const ModelConfig& base, const Selects& selects) {
  std::set<std::string> selected, left_out;
  for (const Matrix& matrix : ListMatrices(base)) {
    const bool is_selected = selects(matrix.name);
    if (is_selected && !matrix.takes_adapter) {
      return BadAdapter(path, absl::StrCat("target_modules ", Shown(targets), " select ", matrix.name,
                                           ", which cannot carry an adapter here"));
    }
    if (matrix.takes_adapter) (is_selected ? selected : left_out).insert(matrix.projection());
  }
  std::vector<std::string> projections;
  for (const std::string& projection : LoraConfig::AllProjections()) {
    if (selected.count(projection) == 0) continue;
    if (left_out.count(projection) > 0) {
      return BadAdapter(path, absl::StrCat("target_modules ", Shown(targets), " select ", projection,
                                           " in some layers only; they must select it in all layers or in none"));
    }
    projections.push_back(projection);
  }
  if (projections.empty()) {
    return BadAdapter(path, absl::StrCat("target_modules ", Shown(targets),
                                         " match nothing in this model: were the adapters made for another one?"));
  }
  return projections;
}

absl::Status CheckAdapterTensor(const std::string& path, const StoredTensor& stored, const TensorSpec& wanted) {
  const bool is_weight = stored.dtype == StoredDType::kFloat32 || stored.dtype == StoredDType::kBFloat16 ||
                         stored.dtype == StoredDType::kFloat16;
  if (!is_weight) {
    return BadAdapter(path, absl::StrCat("tensor ", stored.name, " is ", StoredDTypeName(stored.dtype),
                                         "; adapters are BF16, F16 or F32"));
  }
  if (stored.shape == wanted.shape) return absl::OkStatus();
  return BadAdapter(path, absl::StrCat("tensor ", stored.name, " has the shape [", absl::StrJoin(stored.shape, ", "),
                                       "], and this model needs [", absl::StrJoin(wanted.shape, ", "),
                                       "]: were the adapters made for another base?"));
}

// values [outputs, inputs] += scale * b a, for a [rank, inputs] and b [outputs, rank].
void AddProduct(const std::vector<float>& a, const std::vector<float>& b, int64_t inputs, const LoraConfig& lora,
                absl::Span<float> values) {
  const auto width = static_cast<size_t>(inputs), rank = static_cast<size_t>(lora.rank);
  std::vector<double> row(width);
  for (size_t output = 0; output * width < values.size(); ++output) {
    std::fill(row.begin(), row.end(), 0.0);
    for (size_t r = 0; r < rank; ++r) {
      const double factor = lora.scale() * b[output * rank + r];
      for (size_t i = 0; i < width; ++i) row[i] += factor * a[r * width + i];
    }
    float* const to = values.data() + output * width;
    for (size_t i = 0; i < width; ++i) to[i] = static_cast<float>(to[i] + row[i]);
  }
}

std::vector<TensorSpec> AdapterSpecs(const ModelConfig& config) {
  std::vector<TensorSpec> specs;
  for (TensorSpec& spec : ParameterSpecs(config, DType::kFloat32)) {
    if (IsAdapterName(spec.name)) specs.push_back(std::move(spec));
  }
  return specs;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ParseProjections(const std::string& targets) {
  if (targets == kAllLinear) return LoraConfig::AllProjections();
  std::set<std::string> named;
  for (absl::string_view one : absl::StrSplit(targets, ',')) {
    const std::string name(absl::StripAsciiWhitespace(one));
    if (!absl::c_linear_search(LoraConfig::AllProjections(), name)) {
      return Error(absl::StatusCode::kInvalidArgument, "BAD_ADAPTER",
                   absl::StrCat("\"", absl::CHexEscape(name.substr(0, kShown)), "\" is no projection; there are ",
                                absl::StrJoin(LoraConfig::AllProjections(), ", "), ", and all-linear for all of them"));
    }
    named.insert(name);
  }
  std::vector<std::string> projections;
  for (const std::string& projection : LoraConfig::AllProjections()) {
    if (named.count(projection) > 0) projections.push_back(projection);
  }
  return projections;
}

absl::StatusOr<AdapterDescription> DescribeAdapter(const std::string& folder) {
  const std::string path = JoinPath(folder, kAdapterConfigFile);
  absl::StatusOr<std::string> text = ReadModelFile(path, kAdapterLimits.max_bytes);
  if (absl::IsNotFound(text.status())) {
    return Error(absl::StatusCode::kNotFound, "NO_ADAPTER",
                 absl::StrCat(folder, " has no ", kAdapterConfigFile, ": it is no directory of PEFT adapters"));
  }
  SYNCOPATE_RETURN_IF_ERROR(text.status());
  const absl::StatusOr<Json> json = ParseStrictJson(*text, kAdapterLimits);
  if (!json.ok()) return BadAdapter(path, std::string(json.status().message()));
  SYNCOPATE_RETURN_IF_ERROR(CheckKeys(path, *json));
  const Json rank = json->value("r", Json());
  constexpr uint64_t kMostRanks = 1 << 24;
  if (!rank.is_number_unsigned() || rank.get<uint64_t>() == 0 || rank.get<uint64_t>() > kMostRanks) {
    return BadAdapter(path, absl::StrCat("r is ", Shown(rank), "; it must be a positive whole number"));
  }
  AdapterDescription description{.rank = rank.get<int64_t>(), .text = *std::move(text)};
  const Json base = json->value("base_model_name_or_path", Json());
  if (base.is_string()) description.base = base.get<std::string>();
  return description;
}

absl::StatusOr<LoraConfig> ReadAdapterConfig(const std::string& folder, const ModelConfig& base,
                                             const CompilePattern& compile) {
  const std::string path = JoinPath(folder, kAdapterConfigFile);
  SYNCOPATE_ASSIGN_OR_RETURN(const AdapterDescription description, DescribeAdapter(folder));
  SYNCOPATE_ASSIGN_OR_RETURN(const Json json, ParseStrictJson(description.text, kAdapterLimits));
  const Json alpha = json.value("lora_alpha", Json());
  if (!alpha.is_number() || !(alpha.get<double>() > 0) || !std::isfinite(alpha.get<double>())) {
    return BadAdapter(path, absl::StrCat("lora_alpha is ", Shown(alpha), "; it must be a positive number"));
  }
  const Json stabilised = json.value("use_rslora", Json(false));
  if (!stabilised.is_boolean()) {
    return BadAdapter(path, absl::StrCat("use_rslora is ", Shown(stabilised), "; it must be true or false"));
  }
  const Json targets = json.value("target_modules", Json());
  SYNCOPATE_ASSIGN_OR_RETURN(const Selects selects, ReadTargets(path, targets, compile));
  LoraConfig lora;
  SYNCOPATE_ASSIGN_OR_RETURN(lora.projections, SelectProjections(path, targets, base, selects));
  lora.rank = description.rank;
  lora.alpha = alpha.get<double>();
  lora.rank_stabilised = stabilised.get<bool>();
  return lora;
}

std::string FormatAdapterConfig(const LoraConfig& lora, const std::string& base_name) {
  // All keys that change what PEFT computes, so that its own defaults do not matter. PEFT writes a whole alpha so.
  const bool is_whole = lora.alpha == std::floor(lora.alpha) && lora.alpha < 1e15;
  const Json alpha = is_whole ? Json(static_cast<int64_t>(lora.alpha)) : Json(lora.alpha);
  const Json json = {{"base_model_name_or_path", base_name.empty() ? Json() : Json(base_name)},
                     {"bias", "none"},
                     {"fan_in_fan_out", false},
                     {"inference_mode", true},
                     {"init_lora_weights", true},
                     {"lora_alpha", alpha},
                     {"lora_bias", false},
                     {"lora_dropout", 0.0},
                     {"modules_to_save", Json()},
                     {"peft_type", "LORA"},
                     {"r", lora.rank},
                     {"target_modules", lora.projections},
                     {"task_type", "CAUSAL_LM"},
                     {"use_dora", false},
                     {"use_rslora", lora.rank_stabilised}};
  return json.dump(2, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace) + "\n";
}

std::map<std::string, std::string> AdapterMetadata(uint64_t base_digest) {
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  if (base_digest != 0) metadata[kBaseDigest] = absl::StrFormat("%016x", base_digest);
  return metadata;
}

std::optional<uint64_t> FindBaseDigest(const std::map<std::string, std::string>& metadata) {
  const auto found = metadata.find(kBaseDigest);
  uint64_t digest = 0;
  if (found == metadata.end() || !absl::SimpleHexAtoi(found->second, &digest)) return std::nullopt;
  return digest;
}

absl::StatusOr<std::shared_ptr<const AdapterFiles>> AdapterFiles::Open(const std::string& folder,
                                                                       const ModelConfig& config) {
  const std::string path = JoinPath(folder, kAdapterWeightsFile);
  absl::StatusOr<std::unique_ptr<MappedFile>> file = MappedFile::Open(path);
  if (absl::IsNotFound(file.status())) {
    return Error(absl::StatusCode::kNotFound, "MISSING_WEIGHTS",
                 absl::StrCat(path, " is missing; adapters in another format must be converted to safetensors"));
  }
  SYNCOPATE_RETURN_IF_ERROR(file.status());
  SYNCOPATE_RETURN_IF_ERROR(RefuseLfsPointer((*file)->bytes(), path));
  const absl::StatusOr<SafetensorsFile> parsed = SafetensorsFile::Parse((*file)->bytes());
  if (!parsed.ok()) return Annotate(parsed.status(), path);
  std::map<std::string, StoredTensor> stored;
  for (const StoredTensor& tensor : parsed->tensors()) stored[tensor.name] = tensor;
  std::shared_ptr<AdapterFiles> files(new AdapterFiles());
  for (const TensorSpec& spec : AdapterSpecs(config)) {
    const auto found = stored.find(spec.name);
    if (found == stored.end()) {
      return BadAdapter(
          path, absl::StrCat("tensor ", spec.name, " is missing, and by ", kAdapterConfigFile, " this model has it"));
    }
    SYNCOPATE_RETURN_IF_ERROR(CheckAdapterTensor(path, found->second, spec));
    if (const std::optional<int64_t> bad = FindNonFiniteNumber(found->second); bad.has_value()) {
      return Error(absl::StatusCode::kDataLoss, reason::kNonFinite,
                   absl::StrFormat("%s: element %d of tensor %s is not finite", path, *bad, spec.name));
    }
    files->tensors_.push_back(found->second);
    stored.erase(found);
  }
  if (!stored.empty()) {
    return BadAdapter(
        path, absl::StrCat("tensor ", absl::CHexEscape(stored.begin()->first.substr(0, kShown)),
                           " has no place among the adapters that ", kAdapterConfigFile, " describes for this model"));
  }
  files->base_digest_ = FindBaseDigest(parsed->metadata());
  files->file_ = *std::move(file);
  return std::shared_ptr<const AdapterFiles>(std::move(files));
}

uint64_t DigestBase(size_t count, const std::function<absl::string_view(size_t index)>& numbers) {
  std::vector<uint64_t> digests;
  for (size_t i = 0; i < count; ++i) {
    const absl::string_view bytes = numbers(i);
    digests.push_back(DigestBytes(bytes.data(), static_cast<int64_t>(bytes.size())));
  }
  return CombineBaseDigests(digests);
}

uint64_t CombineBaseDigests(const std::vector<uint64_t>& tensors) {
  uint64_t digest = 0;
  for (const uint64_t tensor : tensors) digest = HashCombine(digest, tensor);
  return std::max<uint64_t>(digest, 1);  // 0 means that there is no base
}

uint64_t DigestBase(const WeightFiles& files, const ModelConfig& config) {
  const std::vector<TensorSpec> specs = ParameterSpecs(config.Base(), DType::kFloat32);
  std::vector<float> values;
  return DigestBase(files.size(), [&](size_t i) {
    values.resize(static_cast<size_t>(specs[i].NumElements()));
    files.Read(i, absl::MakeSpan(values));
    return absl::string_view(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  });
}

std::vector<TensorToWrite> MergeAdapters(const WeightFiles& base, const ModelConfig& config,
                                         const std::function<std::vector<float>(const std::string& name)>& read) {
  std::map<std::string, std::string> modules;  // by the name of the projection's weight
  for (const AdapterSpec& adapter : MakeDecoderSpec(config).adapters) {
    modules[adapter.module + ".weight"] = adapter.module;
  }
  const std::vector<TensorSpec> weights = ParameterSpecs(config.Base(), DType::kFloat32);
  std::vector<TensorToWrite> merged;
  for (size_t i = 0; i < weights.size(); ++i) {
    const TensorSpec& spec = weights[i];
    const auto found = modules.find(spec.name);
    const std::string module = found == modules.end() ? "" : found->second;
    auto write = [&base, spec, i, module, read, lora = config.lora](const ByteSink& sink) {
      std::vector<float> values(static_cast<size_t>(spec.NumElements()));
      base.Read(i, absl::MakeSpan(values));
      if (!module.empty()) {
        AddProduct(read(AdapterName(module, 'A')), read(AdapterName(module, 'B')), spec.shape[1], lora,
                   absl::MakeSpan(values));
      }
      return sink({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
    };
    merged.push_back({spec.name, StoredDType::kFloat32, spec.shape, std::move(write)});
  }
  return merged;
}

void AdapterFiles::Read(size_t index, absl::Span<float> values) const { ReadNumbers(tensors_[index], values); }

absl::StatusOr<int64_t> ExportAdapter(const std::vector<TensorToWrite>& tensors, const std::string& config,
                                      uint64_t base_digest, const std::string& folder, ExportOptions options) {
  const std::string to(absl::StripSuffix(folder, "/"));
  options.dtype = DType::kFloat32;
  SYNCOPATE_RETURN_IF_ERROR(WriteNewFolder(to, options, [&](const std::string& partial) -> absl::Status {
    SYNCOPATE_RETURN_IF_ERROR(
        WriteWeightFile(JoinPath(partial, kAdapterWeightsFile), tensors, options, AdapterMetadata(base_digest)));
    return WriteFileAtomically(options.files, JoinPath(partial, kAdapterConfigFile), config);
  }));
  int64_t bytes = 0;
  for (const TensorToWrite& tensor : tensors) {
    bytes += TensorSpec{tensor.name, DType::kFloat32, tensor.shape}.NumBytes();
  }
  return bytes;
}

}  // namespace syncopate::model
