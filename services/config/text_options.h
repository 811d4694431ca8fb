#pragma once

#include "model/hf_config.h"
#include "syncopate/v1/config.pb.h"
#include "trainer/data/prompt_row.h"
#include "trainer/data/prompt_writer.h"

// How rows of text become prompts, according to the data section.
namespace syncopate::config {

// The options take the end tokens and the vocabulary size of `model`.
trainer::PromptWriter::Options PromptWriterOptions(const v1::RunConfig& config, const model::HfModel& model);

trainer::RowFields GetRowFields(const v1::RunConfig& config);

}  // namespace syncopate::config
