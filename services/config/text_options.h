#pragma once

#include "model/hf_config.h"
#include "syncopate/v1/config.pb.h"
#include "trainer/data/prompt_row.h"
#include "trainer/data/prompt_writer.h"

// How rows of text become prompts, by the data section.
namespace syncopate::config {

// With the ends of answers and the number of tokens of `model`.
trainer::PromptWriter::Options PromptWriterOptions(const v1::RunConfig& config, const model::HfModel& model);

trainer::RowFields RowFieldsOf(const v1::RunConfig& config);

}  // namespace syncopate::config
