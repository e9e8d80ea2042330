#include "core/data/open_dataset.h"

#include <new>
#include <utility>

#include "core/data/augment.h"
#include "core/data/cifar10.h"
#include "core/data/mnist.h"
#include "core/data/synthetic.h"
#include "core/data/text.h"
#include "core/data/tokens.h"

namespace engine {
namespace {

constexpr int kMaxSampleDims = kMaxDims - 1;  // a batch has one more

Result<DatasetPair> Open(const config::Mnist& mnist) {
  return OpenMnist({.images = mnist.images(),
                    .labels = mnist.labels(),
                    .eval_images = mnist.eval_images(),
                    .eval_labels = mnist.eval_labels(),
                    .holdout = mnist.holdout()});
}

Result<DatasetPair> Open(const config::Text& text, uint64_t seed) {
  return OpenText(
      {.path = text.path(), .context = text.context(), .holdout = text.holdout(), .seed = seed});
}

Result<DatasetPair> Open(const config::Synthetic& synthetic, uint64_t seed) {
  SyntheticOptions options = {.samples = synthetic.samples(),
                              .eval_samples = synthetic.eval_samples(),
                              .classes = synthetic.classes(),
                              .seed = seed};
  if (synthetic.shape_size() > kMaxSampleDims) {
    return Status::Error(StatusCode::kConfig, "data.synthetic.shape has %d extents; at most %d",
                         synthetic.shape_size(), kMaxSampleDims);
  }
  if (synthetic.shape_size() > 0) options.shape = {};
  for (const int64_t extent : synthetic.shape()) options.shape.dims[options.shape.ndim++] = extent;
  return OpenSynthetic(options);
}

Result<DatasetPair> Open(const config::Tokens& tokens, uint64_t seed) {
  return OpenTokens({.path = tokens.path(),
                     .context = tokens.context(),
                     .vocabulary = tokens.vocabulary(),
                     .eval_path = tokens.eval_path(),
                     .holdout = tokens.holdout(),
                     .seed = seed});
}

Result<DatasetPair> OpenKind(const config::Data& data, uint64_t seed) {
  switch (data.kind_case()) {
    case config::Data::kMnist:
      return Open(data.mnist());
    case config::Data::kText:
      return Open(data.text(), seed);
    case config::Data::kSynthetic:
      return Open(data.synthetic(), seed);
    case config::Data::kCifar10:
      return OpenCifar10(data.cifar10().path());
    case config::Data::kTokens:
      return Open(data.tokens(), seed);
    case config::Data::KIND_NOT_SET:
      break;
  }
  return Status::Error(StatusCode::kConfig,
                       "data says nothing to train on; give one of mnist, text, synthetic, cifar10 "
                       "and tokens");
}

Result<DatasetPair> Open(const config::Data& data, uint64_t seed) {
  ENGINE_ASSIGN_OR_RETURN(DatasetPair pair, OpenKind(data, seed));
  const config::Augment& augment = data.augment();
  if (augment.crop_padding() == 0 && !augment.flip()) return pair;
  const AugmentOptions options = {
      .crop_padding = augment.crop_padding(), .flip = augment.flip(), .seed = seed};
  ENGINE_ASSIGN_OR_RETURN(pair.train, AugmentImages(std::move(pair.train), options));
  return pair;
}

}  // namespace

Result<DatasetPair> OpenDataset(const config::Data& data, uint64_t seed) {
  try {
    return Open(data, seed);
  } catch (const std::bad_alloc&) {
    return Status::Error(StatusCode::kResourceExhausted, "out of memory while the data was read");
  }
}

}  // namespace engine
