// What a trained model says of samples.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "app/checkpoint/checkpoint.h"
#include "app/run/evaluation.h"
#include "app/run/trained_model.h"
#include "core/train/batch_source.h"
#include "engine/status.h"

namespace engine::run {

enum class PredictionFormat {
  kJson,  // an object for each sample, a line each
  kCsv,   // a header, then a line for each prediction: a sample, or an element of its target
  kNpy,   // the outputs as they are, float32 (samples, ...), as numpy.save writes them
};

struct PredictOptions {
  LossChoice loss;
  int64_t top = 1;             // so many classes, the likeliest first
  bool outputs = false;        // kJson: also the outputs as they are
  bool held_out_only = false;  // else all samples: those to train on first
  PredictionFormat format = PredictionFormat::kJson;
};

// Writes the predictions for all samples, in the order of the data, to `write`, which gets whole lines
// (kNpy: bytes). A class has a probability, softmax of the scores or of a binary loss the sigmoid, and
// the name that the checkpoint keeps. Output 0 of the model, for target 0. kConfig when the outputs are
// of no kind that the format can hold.
Status Predict(TrainedModel& model, const checkpoint::ClassNameLists& names,
               const train::BatchRequest& batches, const PredictOptions& options,
               const std::function<Status(std::string_view)>& write);

}  // namespace engine::run
